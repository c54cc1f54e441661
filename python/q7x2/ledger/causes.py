"""Why steps take as long as they do: parts of the critical path by who is to blame.

Time in which programs compute is no cause: it is what steps are for. The rest is:

- *processor*: a rank gets too little processor time, so that others wait for it. Its main thread
  waited for a processor, beyond what a rank that runs as long as it waits at the median of the
  others, for at least half of the time by which it was late. If all ranks wait for processors for
  long, the whole machine has too few, and no rank is named.
- *straggler*: a rank is late, and processors are not the reason.
- *launch*: a rank is idle before it launches what others wait for.
- *calls*: bytes are on their way, and most of that time is of many small calls.
- *codec*: encoding, decoding, and selecting what is sent.
- *link*: bytes on their way otherwise, between hosts or within one; see ``slow_link``.
- *reduction*, *memory*: arithmetic of reductions, and copying.
- *queue*: operations wait for others before them, or for a thread.

A rank is named only if it stands out from the others; see ``rank_causes``.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence

from q7x2._core import periods
from q7x2.ledger import critical_path as ledger_critical_path
from q7x2.ledger import rank_causes as ledger_rank_causes
from q7x2.ledger import slow_link as ledger_slow_link
from q7x2.ledger import steps as ledger_steps
from q7x2.ledger import tiny_calls as ledger_tiny_calls
from q7x2.ledger.critical_path import PARTS, Link, StepPath
from q7x2.ledger.idle import RankUse, rank_use
from q7x2.ledger.reader import Ledger
from q7x2.ledger.steps import Steps
from q7x2.ledger.timeline import Timeline

# Seconds of waiting for a processor per second of running.
_CROWDED = 0.5
_MORE_WORK = 1.5
# The share of a step below which a cause is not worth a line.
_LEAST_SHARE = 1e-3

# The type of the keys of ``StepPath.blamed``.
_Key = tuple[str, "int | str | Link"]


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
        overlap: A lower bound of the share of the time with operations in flight in which a rank's
            program went on; the mean of the ranks. None if there are no operations.
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
    boundaries = ledger_steps.find(ledgers, timeline)
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
        ledger_critical_path.walk(timeline, uses, since, until, rank)
        for since, until, rank in zip(ends, ends[1:], last, strict=False)
        if until > since
    ]
    times = [operations.blocked_ns(ends[0], ends[-1]) for operations in timeline.ranks]
    shares = [1 - blocked / total for blocked, total in times if total > 0]
    overlap = statistics.fmean(shares) if shares else None
    causes = _causes(ledgers, timeline, uses, paths, len(boundaries.ends) >= 2)
    return Analysis(paths, boundaries, causes, uses, overlap)


def _causes(
    ledgers: Sequence[Ledger],
    timeline: Timeline,
    uses: Sequence[RankUse],
    paths: Sequence[StepPath],
    has_steps: bool,
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

    def add(kind: str, who: int | str | None, text: str, keys: Sequence[_Key]) -> None:
        each = [sum(path.blamed.get(key, 0.0) for key in keys) for path in paths]
        cause = Cause(kind, who, sum(blamed[key] for key in keys), text)
        causes.append(_periodic(cause, each))

    crowded: list[_Key] = []
    late: list[int] = []
    for index, operations in enumerate(timeline.ranks):
        rank = operations.rank
        made_wait = blamed["straggler", rank]
        lacking = _shortage(uses, index)
        if lacking is not None and lacking * step >= made_wait / 2 and made_wait > 0:
            text = (
                f"rank {rank} gets too little processor time: its main thread waits for a "
                f"processor {100 * (uses[index].delay or 0):.0f} % of the time"
            )
            add("processor", rank, text, [("straggler", rank), ("queueing", rank)])
        elif is_crowded(uses) and not _works_more(uses, index):
            crowded += [("straggler", rank), ("queueing", rank)]
        else:
            late.append(rank)
    text = "ranks wait for processors: there are too few for all processes of the machine"
    add("processor", None, text, crowded)
    programs = {
        each.rank: ledger_rank_causes.program(each, use, *_span(paths))
        for each, use in zip(timeline.ranks, uses, strict=True)
    }
    for kind, part, ranks in (
        ("straggler", "straggler", late),
        ("queue", "queueing", late),
        ("launch", "launch", list(programs)),
    ):
        idle = {rank: each.idles for rank, each in programs.items()} if kind == "launch" else None
        one = ledger_rank_causes.outstanding({rank: blamed[part, rank] for rank in ranks}, idle)
        text = ledger_rank_causes.TEXTS[kind][one is None]
        if one is not None:
            others = [each.computes for rank, each in programs.items() if rank != one]
            text = text.format(one, ledger_rank_causes.comparison(programs[one].computes, others))
            ranks = [one]
        add(kind, one, text, [(part, rank) for rank in ranks])
    for codec in timeline.codecs:
        text = f"the codec {codec} takes long to encode, decode or select"
        add("codec", codec, text, [("serialisation", codec)])
    links: dict[object, float] = {
        who: each for (part, who), each in blamed.items() if part == "wire"
    }
    kind, (slow, text) = (
        "link",
        ledger_slow_link.find(ledgers, links, totals["wire"] / step if step else 0),
    )
    if has_steps and (tiny := ledger_tiny_calls.find(timeline, *_span(paths), len(paths))):
        kind, slow, text = "calls", None, tiny
    causes.append(_periodic(Cause(kind, slow, totals["wire"], text), _parts(paths, "wire")))
    for kind, text in (
        ("reduction", "reductions take long"),
        ("memory", "copying takes long: memory is the bottleneck"),
    ):
        causes.append(_periodic(Cause(kind, None, totals[kind], text), _parts(paths, kind)))
    found = [cause for cause in causes if cause.seconds > _LEAST_SHARE * step]
    return sorted(found, key=lambda cause: -cause.seconds)


def _parts(paths: Sequence[StepPath], part: str) -> list[float]:
    return [path.parts[part] for path in paths]


def _span(paths: Sequence[StepPath]) -> tuple[int, int]:
    """Begin of the first step and end of the last one; (0, 0) if there are none."""
    return (paths[0].begin_ns, paths[-1].end_ns) if paths else (0, 0)


def _periodic(cause: Cause, seconds: Sequence[float]) -> Cause:
    """The cause, which says so if it is one of every k-th step.

    ``seconds``: its time in each step.
    """
    number = periods.period(seconds)
    if number is None:
        return cause
    return dataclasses.replace(cause, text=f"{cause.text}, in {periods.every(number)}")


def is_crowded(uses: Sequence[RankUse]) -> bool:
    """Whether main threads wait for processors for long: the median of the ranks."""
    known = [each for each in (use.starved() for use in uses) if each is not None]
    return bool(known) and statistics.median(known) > _CROWDED


def _works_more(uses: Sequence[RankUse], index: int) -> bool:
    """Whether a rank computes clearly longer than the others: no lack of processors makes it."""
    mine = uses[index].ran
    others = [use.ran for i, use in enumerate(uses) if i != index and use.ran is not None]
    return mine is not None and bool(others) and mine > _MORE_WORK * statistics.median(others)


def _shortage(uses: Sequence[RankUse], index: int) -> float | None:
    """The share of a rank's time for which it waits for a processor longer than others."""
    mine = uses[index]
    others = [use.starved() for i, use in enumerate(uses) if i != index]
    known = [each for each in others if each is not None]
    if mine.ran is None or mine.delay is None or not known:
        return None
    return mine.delay - mine.ran * statistics.median(known)
