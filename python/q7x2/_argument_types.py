"""Types of command line arguments."""

from __future__ import annotations

import argparse
import math


def finite(text: str) -> float:
    """A number for argparse, without ``nan`` and ``inf``, which ``float`` takes."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value
