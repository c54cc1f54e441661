"""Whether something happens in every k-th step, such as a checkpoint or an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_FEWEST = 3  # times that it happens
_REGULAR = 0.8  # share of the distances, and of the time


def period(seconds: Sequence[float]) -> int | None:
    """k, if it happens in every k-th step, and k is at least 2; None otherwise.

    Args:
        seconds: What it took in each step.
    """
    total = sum(seconds)
    if total <= 0:
        return None
    # If all of it is in steps that take equally long, this is half of what such a step takes.
    least = sum(each * each for each in seconds) / total / 2
    steps = [index for index, each in enumerate(seconds) if each >= least]
    if len(steps) < _FEWEST or sum(seconds[each] for each in steps) < _REGULAR * total:
        return None
    distances = Counter(after - before for before, after in pairwise(steps))
    ((distance, count),) = distances.most_common(1)
    return distance if distance > 1 and count >= _REGULAR * (len(steps) - 1) else None


def every(number: int) -> str:
    """``every 10th step``."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"every {number}{ending} step"
