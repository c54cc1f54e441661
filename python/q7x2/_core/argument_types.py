"""Types of command line arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def finite(text: str) -> float:
    """A number for argparse, without ``nan`` and ``inf``, which ``float`` takes."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def count(least: int, most: int, what: str = "a whole number") -> Callable[[str], int]:
    """A type for argparse: whole numbers from ``least`` to ``most``, both included.

    Every option that counts something has such a limit, so a slip of the finger is an error and not
    a command that takes all memory.
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {what} from {least} to {most}, got {text}")
        return value

    return parse
