"""Where the steps of a training begin and end.

A step ends when its last rank ends it. If the program calls ``q7x2.log_step`` on all ranks, these
are the ends. Otherwise they are estimated from rank 0's operations, because a training repeats the
same calls in each step:

1. The period is the least number of operations after which at least nine in ten operations are
   followed by an equal one: same group, name and bytes.
2. If all buckets are equal, that is 1. So a multiple of it is taken if the program pauses at one
   place of the multiple three times as long as elsewhere.
3. Of the places within a period, the one before the longest pause, by the median, is where steps
   meet: the program computes there.

A program without a period has no steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from q7x2.ledger.reader import Ledger
from q7x2.ledger.timeline import RankOperations, Timeline

_LONGEST_PERIOD = 2048
_REPEATED = 0.9
_FEWEST_STEPS = 3
_MOST_MULTIPLE = 64
_LONG_PAUSE = 3.0


@dataclasses.dataclass(frozen=True)
class Steps:
    """Ends of steps.

    Attributes:
        ends: Nanoseconds on rank 0's clock: the end of what came before the first step, then that
            of each step. Empty: there are no steps.
        last: By step: the index of the rank that ended it last.
        losses: By step: the mean over the ranks that gave one; None: no rank did.
        origin: ``"logged"``, ``"estimated"`` or ``"none"``.
    """

    ends: list[int]
    last: list[int]
    losses: list[float | None]
    origin: str


def find(ledgers: Sequence[Ledger], timeline: Timeline) -> Steps:
    """The steps of a job."""
    logged = [ledger.steps() for ledger in ledgers]
    count = min(len(each) for each in logged)
    if count >= 2:
        rows = list(zip(*(each[:count] for each in logged), strict=True))
        ends = [max(end for end, _ in row) for row in rows]
        last = [max(range(len(row)), key=lambda rank, row=row: row[rank][0]) for row in rows]  # type: ignore[misc]
        return Steps(ends, last[1:], [_mean([x for _, x in row]) for row in rows[1:]], "logged")
    boundaries = _estimate(timeline.ranks[0]) if timeline.ranks else []
    if not boundaries:
        return Steps([], [], [], "none")
    return _of_calls(timeline, boundaries)


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if known else None


def _of_calls(timeline: Timeline, rows: Sequence[int]) -> Steps:
    """Steps that end with the given operations of the first rank."""
    ends, last = [], []
    for row in rows:
        call = timeline.ranks[0].call[row]
        members = timeline.calls[call] if call >= 0 else [(0, row)]
        end, rank = max(
            (timeline.ranks[rank].column["finished_ns"][member], rank) for rank, member in members
        )
        ends.append(end)
        last.append(rank)
    return Steps(ends, last[1:], [None] * (len(ends) - 1), "estimated")


def _estimate(rank: RankOperations) -> list[int]:
    """Rows of the operations that are the last of their steps."""
    rows = [event >> 1 for event in rank.events if not event & 1 and not rank.internal[event >> 1]]
    sizes = rank.column["input_bytes"]
    numbers: dict[tuple[int, int], int] = {}
    signs = [numbers.setdefault((rank.kind[row], sizes[row]), len(numbers)) for row in rows]
    period = _period(signs)
    if period == 0:
        return []
    queued, finished = rank.column["queued_ns"], rank.column["finished_ns"]
    # What comes before the training, such as the parameters' broadcast, repeats nothing.
    first = next(i for i in range(len(signs) - period) if _repeats(signs, i, period))
    chosen = rows[first:]
    pauses = [max(queued[b] - finished[a], 0) for a, b in itertools.pairwise(chosen)]
    period, place = _longest_pause(pauses, period)
    # Pause number i comes before operation i + 1.
    return [chosen[i] for i in range(place, len(chosen), period)]


def _longest_pause(pauses: Sequence[int], period: int) -> tuple[int, int]:
    """The multiple of ``period`` at one of whose places the program pauses, and that place."""
    tail_begin = max(0, len(pauses) - 4 * _LONGEST_PERIOD)
    best = period, 0, 0.0
    for multiple in range(1, _MOST_MULTIPLE + 1):
        length = multiple * period
        if multiple > 1 and len(pauses) - tail_begin < (_FEWEST_STEPS + 1) * length:
            break
        medians = [0.0] * length
        for place in range(length):
            of_place = pauses[tail_begin + (place - tail_begin) % length :: length]
            medians[place] = statistics.median(of_place or [0])
        longest = max(medians)
        score = longest / max(statistics.median(medians), 1.0)
        if multiple == 1 or score >= max(_LONG_PAUSE, 1.25 * best[2]):
            best = length, medians.index(longest), score
    return best[:2]


def _repeats(signs: Sequence[int], first: int, period: int) -> bool:
    return list(signs[first : first + period]) == list(signs[first + period : first + 2 * period])


def _period(signs: Sequence[int]) -> int:
    """The period of the signs; 0 if there is none."""
    # Uses the end, because the training is under way by then.
    tail = signs[-4 * _LONGEST_PERIOD :]
    for period in range(1, min(_LONGEST_PERIOD, len(tail) // (_FEWEST_STEPS + 1)) + 1):
        # Most candidates fail at the first few.
        if tail[-1] != tail[-1 - period]:
            continue
        pairs = len(tail) - period
        equal = sum(a == b for a, b in zip(tail, tail[period:], strict=False))
        if equal >= _REPEATED * pairs:
            found = any(_repeats(signs, i, period) for i in range(len(signs) - 2 * period + 1))
            return period if found else 0
    return 0
