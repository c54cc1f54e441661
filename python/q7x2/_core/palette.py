"""Colours of pictures, which people tell apart however they see colours.

They are those of Okabe and Ito, "Color universal design", 2008, without yellow, which is too light
for lines.
"""

from __future__ import annotations

from typing import Any

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK, GREY = "#e69f00", "#56b4e9", "#000000", "#868e96"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))


def line_style(index: int) -> dict[str, Any]:
    """The style of line ``index`` of at most 35: the dashes change after the last colour."""
    return {
        "color": LINES[index % len(LINES)],
        "linestyle": DASHES[index // len(LINES)],
    }
