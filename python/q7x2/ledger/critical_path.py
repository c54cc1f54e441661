"""The critical path of each step over all ranks: what the step's time was spent on.

The path is walked backwards, from the moment at which the last rank ends the step to the moment at
which the step before ended:

- In the program of a rank, back to the last operation that blocked it (see ``timeline``). The time
  between is ``compute``. What a codec took to look through the tensor is ``serialisation``.
- In an operation, back to the moment at which the last of its ranks started it. Between that
  moment and the end, the rank that computed longest for the operation says how much was
  ``serialisation`` (encoding and decoding), ``reduction``, ``memory`` (copying) and ``queueing``
  (a job that waits for a thread, or its thread for a processor). A job that waits for a thread
  waits for what the thread does: work for other operations that the rank has in flight counts as
  that work, and what then remains is ``queueing``. The rest of the time is ``wire``. It is
  divided among links by how long ranks waited for messages of each peer.
- Then in the program of the rank that started it last. By how much it started later than the
  median of the others is ``straggler``. If the operation was submitted before it had its turn, the
  path goes on in the operation before it, and time between is ``queueing``.
- Of a program's time, the part in which its main thread neither ran nor waited for a processor is
  ``launch``: the process waited for data, a lock or a timer, so that what follows was launched
  late. It is known as an average of the job. On ranks that use an accelerator it is left out,
  because waiting for the device looks the same.

The parts of a step add up to its time. What is off the path costs nothing, so it is in no part.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from q7x2.ledger.idle import RankUse
from q7x2.ledger.timeline import RankOperations, Timeline

PARTS = (
    "compute",
    "straggler",
    "launch",
    "serialisation",
    "queueing",
    "wire",
    "reduction",
    "memory",
)
"""What a step's time is spent on."""

TEXTS = {
    "compute": "the program computes",
    "straggler": "a rank is late",
    "launch": "a rank is idle before it launches",
    "serialisation": "codecs encode and decode",
    "queueing": "operations wait for their turn or a thread",
    "wire": "bytes are on their way",
    "reduction": "reductions",
    "memory": "copying",
}
"""The same for a person."""

Link = tuple[int, int]
"""The rank that sent and the rank that waited; (-1, -1) if nobody is known to have waited."""


@dataclasses.dataclass
class StepPath:
    """One step. Seconds, except ``begin_ns`` and ``end_ns``, which are on rank 0's clock.

    Attributes:
        parts: By name; see ``PARTS``.
        blamed: By part and who is to blame for it: a rank for ``straggler``, ``launch`` and
            ``queueing``, a codec's name for ``serialisation``, and a ``Link`` for ``wire``.
    """

    begin_ns: int
    end_ns: int
    parts: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    blamed: defaultdict[tuple[str, int | str | Link], float] = dataclasses.field(
        default_factory=lambda: defaultdict(float)
    )

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own."""
        return (self.end_ns - self.begin_ns) * 1e-9

    def add(self, part: str, ns: float, who: int | str | Link | None = None) -> None:
        """Count time of the path."""
        if ns > 0:
            self.parts[part] += ns * 1e-9
            if who is not None:
                self.blamed[part, who] += ns * 1e-9


def walk(timeline: Timeline, uses: Sequence[RankUse], begin: int, end: int, last: int) -> StepPath:
    """The path of the step from ``begin`` to ``end``, which rank number ``last`` ended."""
    step = StepPath(begin, end)
    _Walk(timeline, uses, step).run(last)
    return step


class _Walk:
    def __init__(self, timeline: Timeline, uses: Sequence[RankUse], step: StepPath) -> None:
        self._timeline = timeline
        self._uses = uses
        self._step = step
        self._joined: set[int] = set()  # asynchronous kinds whose end the program has waited for
        self._late = 0  # nanoseconds of the program's time, from here back, that made others wait

    def run(self, rank: int) -> None:
        begin = self._step.begin_ns
        now = self._step.end_ns
        position = self._timeline.event_before(rank, now)
        while now > begin:
            position, is_blocking = self._last_blocking(rank, position)
            operations = self._timeline.ranks[rank]
            since = min(operations.times[position], now) if is_blocking else begin
            self._program(rank, since, now)
            if not is_blocking:
                return
            rank, row, now = self._operations(rank, operations.events[position] >> 1, since)
            position = self._timeline.ranks[rank].submission[row] - 1
            now -= self._selected(rank, row, now)

    def _operations(self, rank: int, row: int, now: int) -> tuple[int, int, int]:
        """Counts the operation that ended at ``now``, and those whose turn was before.

        Returns:
            The rank and row of the operation before which the program goes on, and that time.
        """
        while True:
            rank, row, now = self._operation(rank, row, now)
            queued = max(self._timeline.ranks[rank].column["queued_ns"][row], self._step.begin_ns)
            if now <= queued:
                return rank, row, now
            before = self._turn_before(rank, row, now)
            ended = queued if before is None else self._timeline.ranks[rank].times[before]
            self._step.add("queueing", now - max(ended, queued), self._timeline.ranks[rank].rank)
            self._late = 0
            now = max(ended, queued)
            if before is None or now <= self._step.begin_ns:
                return rank, row, now
            row = self._timeline.ranks[rank].events[before] >> 1

    def _last_blocking(self, rank: int, position: int) -> tuple[int, bool]:
        """The last end of an operation, at ``position`` or before, for which the program waited."""
        operations = self._timeline.ranks[rank]
        begin = self._step.begin_ns
        while position >= 0 and operations.times[position] > begin:
            event = operations.events[position]
            if event & 1 and self._blocks(operations, event >> 1):
                return position, True
            position -= 1
        return position, False

    def _blocks(self, operations: RankOperations, row: int) -> bool:
        if operations.internal[row]:
            return not operations.overlapped[row]
        kind = operations.kind[row]
        if not self._timeline.asynchronous[kind]:
            return True
        # The program waits for all of them together, before it goes on to something else.
        is_last = kind not in self._joined
        self._joined.add(kind)
        return is_last

    def _selected(self, rank: int, row: int, now: int) -> int:
        operations = self._timeline.ranks[rank]
        taken = min(operations.column["select_ns"][row], now - self._step.begin_ns)
        self._step.add("serialisation", taken, self._timeline.codecs[operations.codec[row]])
        return taken

    def _program(self, rank: int, since: int, now: int) -> None:
        length = now - since
        late = min(self._late, length)
        idle = self._uses[rank].idle * length
        name = self._timeline.ranks[rank].rank
        # Idle time is at the end of what made others wait, if there is such time.
        self._step.add("launch", idle, name)
        self._step.add("straggler", max(late - idle, 0), name)
        self._step.add("compute", length - idle - max(late - idle, 0))
        self._late = 0

    def _operation(self, rank: int, row: int, now: int) -> tuple[int, int, int]:
        """Counts the time from the last rank's start to ``now``; returns that rank and start."""
        ranks = self._timeline.ranks
        call = ranks[rank].call[row]
        members = self._timeline.calls[call] if call >= 0 else [(rank, row)]
        starts = [ranks[each].column["started_ns"][at] for each, at in members]
        chosen = max(range(len(members)), key=starts.__getitem__)
        latest = min(starts[chosen], now)
        since = max(latest, self._step.begin_ns)
        self._divide(members, starts, latest, now - since)
        others = [start for index, start in enumerate(starts) if index != chosen]
        self._late = int(latest - statistics.median(others)) if others else 0
        return *members[chosen], since

    def _turn_before(self, rank: int, row: int, started: int) -> int | None:
        """Where the operation ended that had its turn before; None: there was none."""
        operations = self._timeline.ranks[rank]
        position = self._timeline.event_before(rank, started)
        while position > operations.submission[row]:
            before = operations.events[position] >> 1
            is_earlier = operations.submission[before] < operations.submission[row]
            if operations.events[position] & 1 and is_earlier:
                return position
            position -= 1
        return None

    def _divide(
        self,
        members: Sequence[tuple[int, int]],
        starts: Sequence[int],
        latest: int,
        length: int,
    ) -> None:
        """Counts ``length`` nanoseconds of a call in which all ranks are from ``latest`` on."""
        if length <= 0:
            return
        most, busiest = -1.0, (-1, -1)
        waits: defaultdict[Link, float] = defaultdict(float)
        for (index, row), start in zip(members, starts, strict=True):
            operations = self._timeline.ranks[index]
            column = operations.column
            serialised = column["encode_ns"][row] + column["decode_ns"][row]
            known = serialised + column["reduce_ns"][row] + column["copy_ns"][row]
            waited = column["waited_ns"][row]
            took = column["finished_ns"][row] - start
            other = max(took - known - waited, 0)
            # What it has computed while others had not started made nobody wait.
            early = latest - start
            after = max(min(known + other, took) - early, 0)
            if after > most:
                most, busiest = after, (index, row)
            if operations.waited_for[row] >= 0:
                share = column["waited_percent"][row] / 100
                waits[operations.waited_for[row], operations.rank] += share * max(waited - early, 0)
        work = self._work(*busiest, int(min(most, length)))
        for (part, who), ns in work.items():
            self._step.add(part, ns, who)
        wire = length - sum(work.values())
        known_waits = sum(waits.values())
        if known_waits <= 0:
            self._step.add("wire", wire, (-1, -1))
            return
        for link, ns in waits.items():
            self._step.add("wire", wire * ns / known_waits, link)

    def _work(self, rank: int, row: int, length: int) -> dict[tuple[str, int | str | None], float]:
        """Divides ``length`` nanoseconds of one rank's work for an operation, by part and blame."""
        operations = self._timeline.ranks[rank]
        column = operations.column
        own = self._phases(operations, row)
        took = column["finished_ns"][row] - column["started_ns"][row]
        other = max(took - sum(own.values()) - column["waited_ns"][row], 0)
        beside: defaultdict[tuple[str, int | str | None], float] = defaultdict(float)
        for at, share in self._in_flight(operations, row):
            for phase, ns in self._phases(operations, at).items():
                beside[phase] += share * ns
            codec = self._timeline.codecs[operations.codec[at]]
            beside["serialisation", codec] += share * column["select_ns"][at]
        queued = sum(beside.values())
        part_of_other = min(other / queued, 1.0) if queued > 0 else 0.0
        work = defaultdict(float, own)
        for phase, ns in beside.items():
            work[phase] += part_of_other * ns
        work["queueing", operations.rank] += other - part_of_other * queued
        total = sum(work.values())
        return {phase: ns * length / total for phase, ns in work.items()} if total > 0 else {}

    def _phases(
        self, operations: RankOperations, row: int
    ) -> dict[tuple[str, int | str | None], float]:
        column = operations.column
        codec = self._timeline.codecs[operations.codec[row]]
        return {
            ("serialisation", codec): column["encode_ns"][row] + column["decode_ns"][row],
            ("reduction", None): column["reduce_ns"][row],
            ("memory", None): column["copy_ns"][row],
        }

    def _in_flight(self, operations: RankOperations, row: int) -> Iterator[tuple[int, float]]:
        """Other operations beside this one, and which share of their time they were beside it."""
        queued, finished = operations.column["queued_ns"], operations.column["finished_ns"]
        begin, end = operations.column["started_ns"][row], finished[row]
        seen = {row}
        for position in range(operations.submission[row], len(operations.events)):
            if operations.times[position] > end:
                return
            other = operations.events[position] >> 1
            if other not in seen:
                seen.add(other)
                beside = min(finished[other], end) - max(queued[other], begin)
                if beside > 0:
                    yield other, beside / (finished[other] - queued[other])
