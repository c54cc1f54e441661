"""How much of the communication ran beside backward, and how much could have.

Times in seconds of one clock. A collective that is in flight beside k - 1 others counts for 1 / k,
so that what the collectives of all buckets count for is the time in which any was in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    bucket: int
    name: str
    begin: float
    end: float
    lane: int = 0


def busy(collectives: Sequence[Span], until: float = float("inf")) -> float:
    """Seconds before `until` in which at least one was in flight."""
    total, reached = 0.0, float("-inf")
    for span in sorted(collectives, key=lambda each: each.begin):
        begin, end = max(span.begin, reached), min(span.end, until)
        total += max(0.0, end - begin)
        reached = max(reached, span.end)
    return total


def shares(collectives: Sequence[Span]) -> dict[int, float]:
    """What the collectives of each bucket count for."""
    times = sorted({t for span in collectives for t in (span.begin, span.end)})
    result = {span.bucket: 0.0 for span in collectives}
    for begin, end in itertools.pairwise(times):
        running = [s for s in collectives if s.begin <= begin and s.end >= end]
        for span in running:
            result[span.bucket] += (end - begin) / len(running)
    return result


def ideal(work: dict[int, float], ready: dict[int, float], end: float) -> float:
    """What a schedule could hide that sends without a pause: seconds of `work` before `end`.

    Args:
        work: of each bucket, as `shares` gives it.
        ready: when each bucket's gradients were complete.
        end: of backward.
    """
    hidden, free = 0.0, float("-inf")
    for bucket in sorted(work, key=lambda each: ready[each]):
        begin = max(free, ready[bucket])
        free = begin + work[bucket]
        hidden += max(0.0, min(free, end) - begin)
    return hidden
