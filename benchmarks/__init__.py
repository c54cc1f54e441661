"""Benchmarks of q7x2 against other backends: `python -m benchmarks --help`."""
