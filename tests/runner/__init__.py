"""Runs the tests of both languages: what ``./dev test`` calls. It needs no torch."""
