"""Whether the number of a step's small calls determines their time, rather than their bytes."""

from __future__ import annotations

import statistics

from q7x2._core.units import bytes_text
from q7x2.ledger.timeline import Timeline

_TINY = 16 << 10  # bytes, up to which a call takes about as long as an empty one
_MANY = 20  # per step
_MOST = 0.5  # share of the time that all calls take


def find(timeline: Timeline, begin: int, end: int, steps: int) -> str | None:
    """A sentence if small calls take most of the time of all calls; None otherwise.

    Args:
        begin: Nanoseconds on rank 0's clock; only what ends between ``begin`` and ``end`` counts.
        steps: Number of steps between the two.
    """
    sizes: list[int] = []
    tiny = total = 0
    for rank in timeline.ranks:
        column = rank.column
        for row, size in enumerate(column["input_bytes"]):
            finished = column["finished_ns"][row]
            if rank.internal[row] or not begin < finished <= end:
                continue
            took = finished - column["started_ns"][row]
            total += took
            if size <= _TINY:
                tiny += took
                sizes.append(size)
    number = len(sizes) / len(timeline.ranks) / steps if steps else 0.0
    if number < _MANY or tiny < _MOST * total:
        return None
    usual = bytes_text(statistics.median(sizes))
    return (
        f"{number:,.0f} tiny calls per step, of {usual} at the median: each one takes a latency, "
        "whatever its size"
    )
