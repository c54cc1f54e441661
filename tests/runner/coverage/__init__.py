"""Which lines of csrc and python/q7x2 the tests run: ``python -m tests.runner.coverage``."""
