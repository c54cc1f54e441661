"""The pages of the Python reference: docs/reference/*.md, made from docstrings."""
