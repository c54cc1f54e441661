"""The median of a few differences, and how sure it is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

_DRAWS = 2000


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval: the values are drawn again, with replacement."""
    drawn = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(_DRAWS))
    return statistics.median(values), drawn[_DRAWS // 40], drawn[-_DRAWS // 40]
