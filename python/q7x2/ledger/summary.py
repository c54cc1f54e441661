"""What the ledgers of a job add up to, for the report."""

from __future__ import annotations

import dataclasses
import statistics
from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from q7x2.ledger.reader import Ledger
from q7x2.ledger.recorded import COLUMNS, RecordedOperation

PHASES = ("waited", "copy", "reduce", "encode", "decode", "other")
"""The phases of an operation from its start to its end; ``other`` is what remains: a job
waits for a thread, or its thread for a processor."""

_MOST_BINS = 60


@dataclasses.dataclass
class Kind:
    """Operations of one kind: equal group, name, Plan, codec and size class, on all ranks."""

    group: str
    operation: str
    plan: str
    codec: str
    bytes: int  # the largest one
    durations: array[int] = dataclasses.field(default_factory=lambda: array("q"))  # nanoseconds
    failed: int = 0
    waited: int = 0
    network: int = 0  # bytes sent
    memory: int = 0
    predicted: int = 0  # nanoseconds, of those with a prediction
    took_predicted: int = 0

    def quantile(self, part: float) -> float:
        """A quantile of the durations, in seconds; 0 if there are none."""
        if not self.durations:
            return 0.0
        ordered = sorted(self.durations)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1e-9

    def seconds(self) -> float:
        """The sum of the durations, in seconds."""
        return sum(self.durations) * 1e-9


@dataclasses.dataclass
class RankTotals:
    """One rank's sums. Seconds and bytes."""

    rank: int
    host: str
    uncertainty_ns: int | None
    operations: int = 0
    lost: int = 0
    phases: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    sent_network: int = 0
    sent_memory: int = 0


@dataclasses.dataclass
class Summary:
    """All that the report shows.

    ``bins`` are equal pieces of the job's time. Each has seconds of operations by phase, per second
    and as the mean over the ranks; operations that overlap add up.
    ``waited_for[a, b]`` is how many seconds rank a waited for messages of rank b.
    """

    seconds: float
    ranks: list[RankTotals]
    kinds: list[Kind]
    bins: list[dict[str, float]]
    waited_for: dict[tuple[int, int], float]
    facts: dict[str, str]
    failures: list[str]

    def phase(self, name: str) -> float:
        """Seconds of all ranks."""
        return sum(each.phases[name] for each in self.ranks)

    def predicted_ratio(self) -> float | None:
        """The median over kinds of what was measured over what was predicted."""
        ratios = [each.took_predicted / each.predicted for each in self.kinds if each.predicted]
        return statistics.median(ratios) if ratios else None


def summarize(ledgers: Sequence[Ledger]) -> Summary:
    """Add up the operations of all ledgers."""
    spans = [span for span in (ledger.span() for ledger in ledgers) if span is not None]
    begin = min((span[0] for span in spans), default=0)
    end = max((span[1] for span in spans), default=0)
    collector = _Collector(begin, max(end - begin, 1))
    for ledger in ledgers:
        collector.add(ledger)
    return collector.summary(ledgers)


class _Collector:
    def __init__(self, begin: int, length: int) -> None:
        self._begin = begin
        self._length = length
        self._bins = min(_MOST_BINS, max(1, length // 100_000_000))
        self._phases = [[0.0] * self._bins for _ in PHASES]
        self._kinds: dict[tuple[Any, ...], Kind] = {}
        self._waited_for: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._ranks: list[RankTotals] = []
        self._failures: set[str] = set()

    def add(self, ledger: Ledger) -> None:
        totals = RankTotals(
            ledger.rank, ledger.facts["host"], ledger.uncertainty_ns, lost=ledger.lost
        )
        groups = ledger.groups()
        for known in groups.values():
            if known["failure"]:
                self._failures.add(f"group '{known['name']}': {known['failure']}")
        waits: defaultdict[tuple[int, int, int], float] = defaultdict(float)
        for each in map(RecordedOperation._make, ledger.rows(COLUMNS)):
            group = groups.get((each.runtime, each.pg))
            self._count("unknown" if group is None else group["name"], each)
            if each.started_ns is not None:
                self._add_phases(totals, each.started_ns, each.finished_ns, each.phases())
            totals.operations += 1
            if each.waited_for is not None and group is not None:
                seconds = each.waited_ns * each.waited_percent * 1e-11
                waits[each.runtime, each.pg, each.waited_for] += seconds
        for (runtime, pg, waited_for), seconds in waits.items():
            peer = groups[runtime, pg]["members"][waited_for]["rank"]
            self._waited_for[ledger.rank, peer] += seconds
        totals.sent_network, totals.sent_memory = ledger.sent()
        self._ranks.append(totals)

    def _count(self, group: str, each: RecordedOperation) -> None:
        size = each.bytes
        key = group, each.operation, each.internal, each.plan, each.codec, size.bit_length()
        kind = self._kinds.get(key)
        if kind is None:
            shown = "preparation" if each.internal else each.operation
            kind = self._kinds[key] = Kind(group, shown, each.plan or "", each.codec or "", size)
        if size > kind.bytes:
            kind.bytes = size
        kind.network += each.sent_network
        kind.memory += each.sent_memory
        if each.error is not None or each.started_ns is None:
            kind.failed += 1
            return
        took = each.finished_ns - each.started_ns
        kind.durations.append(took)
        kind.waited += each.waited_ns
        if each.predicted_ns is not None:
            kind.predicted += each.predicted_ns
            kind.took_predicted += took

    def _add_phases(
        self, totals: RankTotals, started: int, finished: int, times: list[int]
    ) -> None:
        """``times``: those of the phases, without the last one, which is what remains."""
        phases = totals.phases
        times.append(max(finished - started - sum(times), 0))
        for phase, taken in zip(PHASES, times, strict=True):
            phases[phase] += taken * 1e-9
        width = self._length / self._bins
        first = int((started - self._begin) / width)
        last = min(int((finished - self._begin) / width), self._bins - 1)
        if first == last:
            for row, taken in zip(self._phases, times, strict=True):
                row[first] += taken
            return
        for index in range(first, last + 1):
            left = self._begin + index * width
            part = min(finished, left + width) - max(started, left)
            share = part / (finished - started)
            for row, taken in zip(self._phases, times, strict=True):
                row[index] += share * taken

    def summary(self, ledgers: Sequence[Ledger]) -> Summary:
        scale = self._bins / self._length / len(ledgers)
        bins = [
            {phase: row[i] * scale for phase, row in zip(PHASES, self._phases, strict=True)}
            for i in range(self._bins)
        ]
        kinds = sorted(self._kinds.values(), key=Kind.seconds, reverse=True)
        return Summary(
            seconds=self._length * 1e-9,
            ranks=self._ranks,
            kinds=kinds,
            bins=bins,
            waited_for=dict(self._waited_for),
            facts=ledgers[0].facts,
            failures=sorted(self._failures),
        )
