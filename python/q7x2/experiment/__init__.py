"""Variants of a training against a baseline, with a verdict."""
