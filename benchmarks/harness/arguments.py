"""Types of command line arguments; each refuses nonsense with a text that argparse shows."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def explained(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as a type for argparse, which hides the text of any other error than its own."""

    def typed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def names(text: str) -> tuple[str, ...]:
    """`"a, b"` -> ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_size(text: str) -> int:
    """`"64K"` -> 65536; the units are powers of 1024."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isdigit():
        raise ValueError(f"a size is a number of bytes with K, M or G at most; got {text!r}")
    return int(digits) * scale


@explained
def sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_size(part) for part in names(text))


@explained
def rank_counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in names(text))
    if not counts or min(counts) < 1:
        raise ValueError(f"numbers of ranks are 1 or more; got {text!r}")
    return counts
