"""Why steps take as long as they do: parts of the critical path by who is to blame.

Time in which programs compute is no cause: it is what steps are for. The rest is:

- *processor*: a rank gets too little processor time, so that others wait for it. Its main thread
  waited for a processor, beyond what a rank that runs as long as it waits at the median of the
  others, for at least half of the time by which it was late. If all ranks wait for processors for
  long, the whole machine has too few, and no rank is named.
- *straggler*: a rank is late, and processors are not the reason.
- *launch*: a rank is idle before it launches what others wait for.
- *codec*: encoding, decoding, and selecting what is sent.
- *link*: bytes on their way; see ``_slow_link``.
- *reduction*, *memory*: arithmetic of reductions, and copying.
- *queue*: operations wait for others before them, or for a thread.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence

from q7x2 import _critical_path, _slow_link, _steps
from q7x2._critical_path import PARTS, Link, StepPath
from q7x2._idle import RankUse, rank_use
from q7x2._ledger_read import Ledger
from q7x2._steps import Steps
from q7x2._timeline import Timeline

# Seconds of waiting for a processor per second of running.
_CROWDED = 0.5
# Of a step: less is not worth a line.
_LEAST_SHARE = 1e-3


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause.

    Attributes:
        kind: See the module.
        who: A rank, the name of a codec or of a host, two hosts, or None.
        seconds: On the critical path, per step.
        text: A sentence.
    """

    kind: str
    who: int | str | tuple[str, str] | None
    seconds: float
    text: str


@dataclasses.dataclass
class Analysis:
    """The critical path of a job.

    Attributes:
        steps: The paths of all steps. If the job has no steps, one path of the whole job.
        boundaries: Where the steps are from.
        causes: The costliest first.
        uses: By the index of a rank.
        overlap: Of the time in which a rank had operations in flight, the share in which its
            program went on, at least; the mean of the ranks. None if there are no operations.
    """

    steps: list[StepPath]
    boundaries: Steps
    causes: list[Cause]
    uses: list[RankUse]
    overlap: float | None

    def seconds(self) -> float:
        """The mean of a step's time; 0 if there are no operations."""
        return statistics.fmean(step.seconds for step in self.steps) if self.steps else 0.0

    def part(self, name: str) -> float:
        """The mean of a part of a step, in seconds."""
        return statistics.fmean(step.parts[name] for step in self.steps) if self.steps else 0.0


def analyse(ledgers: Sequence[Ledger]) -> Analysis:
    """Find the steps, their critical paths, and the causes."""
    timeline = Timeline(ledgers)
    boundaries = _steps.find(ledgers, timeline)
    begin, end = timeline.span()
    ends, last = boundaries.ends, boundaries.last
    if len(ends) < 2:
        finished = [each.times[-1] if len(each) else 0 for each in timeline.ranks]
        ends, last = [begin, end], [finished.index(max(finished))]
    uses = [
        rank_use(ledger, operations, ends[0], ends[-1])
        for ledger, operations in zip(ledgers, timeline.ranks, strict=True)
    ]
    paths = [
        _critical_path.walk(timeline, uses, since, until, rank)
        for since, until, rank in zip(ends, ends[1:], last, strict=False)
        if until > since
    ]
    times = [operations.blocked_ns(ends[0], ends[-1]) for operations in timeline.ranks]
    shares = [1 - blocked / total for blocked, total in times if total > 0]
    overlap = statistics.fmean(shares) if shares else None
    causes = _causes(ledgers, timeline, uses, paths)
    return Analysis(paths, boundaries, causes, uses, overlap)


def _causes(
    ledgers: Sequence[Ledger],
    timeline: Timeline,
    uses: Sequence[RankUse],
    paths: Sequence[StepPath],
) -> list[Cause]:
    blamed: defaultdict[tuple[str, int | str | Link], float] = defaultdict(float)
    totals = dict.fromkeys(PARTS, 0.0)
    for path in paths:
        for who, seconds in path.blamed.items():
            blamed[who] += seconds / len(paths)
        for part, seconds in path.parts.items():
            totals[part] += seconds / len(paths)
    step = sum(path.seconds for path in paths) / max(len(paths), 1)
    causes = []
    crowded = 0.0
    late: dict[int, float] = {}
    queued: dict[int, float] = {}
    for index, operations in enumerate(timeline.ranks):
        rank = operations.rank
        made_wait = blamed["straggler", rank]
        lacking = _shortage(uses, index)
        if lacking is not None and lacking * step >= made_wait / 2 and made_wait > 0:
            text = (
                f"rank {rank} gets too little processor time: its main thread waits for a "
                f"processor {100 * (uses[index].delay or 0):.0f} % of the time"
            )
            seconds = made_wait + blamed["queueing", rank]
            causes.append(Cause("processor", rank, seconds, text))
        elif is_crowded(uses):
            crowded += made_wait + blamed["queueing", rank]
        else:
            late[rank] = made_wait
            queued[rank] = blamed["queueing", rank]
    text = "ranks wait for processors: there are too few for all processes of the machine"
    causes.append(Cause("processor", None, crowded, text))
    launch = {each.rank: blamed["launch", each.rank] for each in timeline.ranks}
    causes += [_of_ranks("straggler", late), _of_ranks("queue", queued)]
    causes.append(_of_ranks("launch", launch))
    for codec in timeline.codecs:
        text = f"the codec {codec} takes long to encode, decode or select"
        causes.append(Cause("codec", codec, blamed["serialisation", codec], text))
    links: dict[object, float] = {
        who: each for (part, who), each in blamed.items() if part == "wire"
    }
    slow, text = _slow_link.find(ledgers, links)
    causes.append(Cause("link", slow, totals["wire"], text))
    causes.append(Cause("reduction", None, totals["reduction"], "reductions take long"))
    text = "copying takes long: memory is the bottleneck"
    causes.append(Cause("memory", None, totals["memory"], text))
    found = [cause for cause in causes if cause.seconds > _LEAST_SHARE * step]
    return sorted(found, key=lambda cause: -cause.seconds)


# About one rank, and about several.
_RANK_TEXTS = {
    "straggler": (
        "rank {} comes late to collectives: it computes longer than the others",
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


def _of_ranks(kind: str, seconds: dict[int, float]) -> Cause:
    """One rank, if most of the time is its own; all of them otherwise."""
    total = sum(seconds.values())
    one, several = _RANK_TEXTS[kind]
    rank = max(seconds, key=seconds.__getitem__, default=None)
    if rank is not None and seconds[rank] > total / 2:
        return Cause(kind, rank, seconds[rank], one.format(rank))
    return Cause(kind, None, total, several)


def is_crowded(uses: Sequence[RankUse]) -> bool:
    """Whether main threads wait for processors for long: the median of the ranks."""
    known = [each for each in (use.starved() for use in uses) if each is not None]
    return bool(known) and statistics.median(known) > _CROWDED


def _shortage(uses: Sequence[RankUse], index: int) -> float | None:
    """Of a rank's time: how long it waits for a processor beyond what is usual for others."""
    mine = uses[index]
    others = [use.starved() for i, use in enumerate(uses) if i != index]
    known = [each for each in others if each is not None]
    if mine.ran is None or mine.delay is None or not known:
        return None
    return mine.delay - mine.ran * statistics.median(known)
