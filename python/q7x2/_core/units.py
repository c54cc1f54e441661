"""Quantities as short texts with their units, for people."""

from __future__ import annotations

import re

_MOST_BYTES = 2**60
"""More than any machine has."""


def time_text(value: float) -> str:
    """Seconds, such as ``3.21 ms``."""
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * scale:.3g} {unit}" if value >= 1e-9 else "0 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def bytes_text(value: float) -> str:
    """Bytes, such as ``4.5 MiB``."""
    scaled = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < 1000:
            return f"{scaled:.3g} {unit}"
        scaled /= 1024
    return f"{scaled:.3g} TiB"


def percent_text(part: float, whole: float) -> str:
    """``part`` in percent of ``whole``."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "—"


def ranks_text(ranks: list[int]) -> str:
    """Consecutive ranks as a range: ``ranks_text([0, 1, 2, 7])`` is ``"0-2, 7"``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_size(text: str) -> int:
    """``"16M"`` and ``"16MiB"`` -> 16777216, ``"16MB"`` -> 16000000. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,18}) ?([KMG]?)(I?B)?", text.strip().upper())
    if match is None or (match[3] == "IB" and not match[2]):
        raise ValueError(
            f"expected a number of bytes, such as 4096, 16M or 16MiB (powers of 1024) or 16MB "
            f"(powers of 1000); got {text!r}"
        )
    base = 1000 if match[2] and match[3] == "B" else 1024
    unit: int = base ** ("", "K", "M", "G").index(match[2])
    number = int(match[1]) * unit
    if number > _MOST_BYTES:
        raise ValueError(f"expected at most {_MOST_BYTES} bytes (1024 PiB), got {text!r}")
    return number
