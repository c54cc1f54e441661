"""Causes that are about ranks: which rank to name, and how its lateness shows.

A rank is named only if it stands out: more than half of the time is its own, and at least twice as
much as that of any other rank. For ``launch`` it must also be idle for twice as long as the others.
In ranks that are equally idle, the critical path goes through the one that is last by a little, and
that says nothing against this rank.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from q7x2.ledger.idle import RankUse
from q7x2.ledger.timeline import RankOperations

# How many times as long as the others a rank computes, from which on the number is given.
_MUCH_LONGER = 1.2

# About one rank, and about several.
TEXTS = {
    "straggler": (
        "rank {} comes late to collectives: it computes {}",
        "now one rank comes late to collectives, now another",
    ),
    "queue": (
        "operations of rank {} wait for their turn or for a thread",
        "operations wait for their turn or for a thread",
    ),
    "launch": (
        "rank {} launches late: before, it is idle and waits for data, a lock or a timer",
        "ranks launch late: before, they are idle and wait for data, a lock or a timer",
    ),
}
"""What a cause says of the rank that it names, and if it names none."""


def outstanding(
    seconds: Mapping[int, float], idle: Mapping[int, float] | None = None
) -> int | None:
    """The rank that stands out; None if none does.

    Args:
        seconds: By rank: what it is to blame for.
        idle: By rank: the share of its time in which it was idle; None: that is no matter.
    """
    ordered = sorted(seconds, key=seconds.__getitem__, reverse=True)
    if not ordered or seconds[ordered[0]] <= 0:
        return None
    first, others = ordered[0], ordered[1:]
    if not others:
        return first
    if seconds[first] <= sum(seconds.values()) / 2 or seconds[first] < 2 * seconds[others[0]]:
        return None
    if idle is not None and idle[first] < 2 * statistics.median(idle[each] for each in others):
        return None
    return first


@dataclasses.dataclass(frozen=True)
class Program:
    """How long the program of a rank was outside operations, in nanoseconds."""

    computes: float
    idles: float


def program(operations: RankOperations, use: RankUse, begin: int, end: int) -> Program:
    """What the program of a rank did between two times."""
    outside = max(end - begin - operations.blocked_ns(begin, end)[0], 0)
    return Program(outside * (1 - use.idle), outside * use.idle)


def comparison(mine: float, others: Sequence[float]) -> str:
    """How much longer than the others a rank computes, in words."""
    usual = statistics.median(others) if others else 0.0
    if usual <= 0 or mine / usual < _MUCH_LONGER:
        return "longer than the others"
    times = f"{mine / usual:.1f} times as long as the others"
    return f"{times}, as with a larger batch or a slower processor"
