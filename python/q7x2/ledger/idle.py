"""How the main thread of each rank spent the job: it ran, waited for a processor, or was idle.

The samples of the ledger say for how long the main thread ran, and for how long it was ready to run
and had no processor. What remains of the time outside operations is idle: the program waited
for something that is neither a processor nor q7x2. Time inside operations may count as running,
because waiting may spin, and so does all time in which codecs select, whatever thread they use. So
the idle time is a lower bound. It is best known for a rank that is late, because that rank is
hardly ever inside an operation.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence

from q7x2.ledger.reader import Ledger
from q7x2.ledger.samples import Sample
from q7x2.ledger.timeline import RankOperations


@dataclasses.dataclass(frozen=True)
class RankUse:
    """Shares of one rank's time.

    Attributes:
        idle: The share of the time outside operations in which the main thread neither ran nor
            waited for a processor. 0 if that is unknown, and on ranks that use an accelerator.
        ran: The share of all time in which the main thread ran; None: unknown.
        delay: The share of all time in which it was ready but had no processor; None: unknown.
    """

    idle: float
    ran: float | None
    delay: float | None

    def starved(self) -> float | None:
        """The time of ``delay`` per time of ``ran``; None if that is unknown."""
        return None if not self.ran or self.delay is None else self.delay / self.ran


def rank_use(ledger: Ledger, operations: RankOperations, begin: int, end: int) -> RankUse:
    """The shares between two times on rank 0's clock, in nanoseconds."""
    samples = [each for each in ledger.samples if each.main_cpu_ns is not None]
    if end <= begin or len(samples) < 2:
        return RankUse(0.0, None, None)
    ran = _between(samples, [each.main_cpu_ns or 0 for each in samples], begin, end)
    delay = _between(samples, [each.main_delay_ns or 0 for each in samples], begin, end)
    outside = (end - begin) - operations.blocked_ns(begin, end)[0]
    idle = 0.0
    if outside > 0 and not ledger.facts["accelerator"]:
        column = operations.column
        selecting = sum(
            taken
            for taken, queued in zip(column["select_ns"], column["queued_ns"], strict=True)
            if begin < queued <= end
        )
        idle = min(max((outside - ran - delay - selecting) / outside, 0.0), 1.0)
    return RankUse(idle, ran / (end - begin), delay / (end - begin))


def _between(samples: Sequence[Sample], totals: Sequence[int], begin: int, end: int) -> float:
    times = [each.steady_ns for each in samples]
    return _at(times, totals, end) - _at(times, totals, begin)


def _at(times: Sequence[int], totals: Sequence[int], time: int) -> float:
    """A total at ``time``, interpolated between samples and continued beyond them."""
    index = min(max(bisect_right(times, time), 1), len(times) - 1)
    length = times[index] - times[index - 1]
    rate = (totals[index] - totals[index - 1]) / length if length > 0 else 0.0
    return totals[index - 1] + rate * (time - times[index - 1])
