"""One measurement per file; its docstring is the protocol."""
