"""Quantities as short texts with their units, for people."""

from __future__ import annotations


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
