"""Exact intervals of a median, from order statistics (the sign test).

The number of n independent differences that are below their true median follows a binomial
distribution, whatever the differences are distributed like. So the interval between the k-th
smallest and the k-th largest misses the median with probability 2 P(B(n, 1/2) < k). It needs no
assumption about noise, and holds for few pairs, where bootstrap intervals are too short. See W. J.
Conover, "Practical Nonparametric Statistics", 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """The shortest such interval that holds the median with at least ``confidence``.

    Raises:
        ValueError: There are too few values for that confidence.
    """
    count = _outside(len(values), confidence)
    if count == 0:
        raise ValueError(
            f"expected at least {fewest_pairs(confidence)} values for a confidence of "
            f"{confidence:g}, got {len(values)}"
        )
    ordered = sorted(values)
    return ordered[count - 1], ordered[-count]


def fewest_pairs(confidence: float) -> int:
    """How many values an interval needs."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def _outside(number: int, confidence: float) -> int:
    """The largest k; 0: there is none."""
    tail, k = 0.0, 0
    while k < number:
        tail += math.comb(number, k) / 2**number
        if 2 * tail > 1 - confidence + 1e-12:
            break
        k += 1
    return k
