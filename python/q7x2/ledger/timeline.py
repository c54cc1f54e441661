"""The operations of all ranks as columns, and as events of each rank's program.

A collective of a group has the same sequence number on all ranks: its operations together are one
*call*. Messages belong to no call.

A program submits operations and waits for some of them. The ledger knows when an operation was
submitted and when it ended, but not whether the program waited for it. Therefore:

- An operation during which its rank submits another one is *overlapped*. If more than one in a
  hundred operations of a kind (equal group and name) are, the program uses that kind
  asynchronously, as DDP uses its all-reduces. Others block the program until they end.
- Operations that q7x2 makes to prepare a call block only if they are not overlapped.
"""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from q7x2.ledger.reader import Ledger

_ROW_BITS = 24
_OVERLAPPED_SHARE = 0.01
_NUMBERS = (
    "queued_ns",
    "started_ns",
    "finished_ns",
    "select_ns",
    "encode_ns",
    "decode_ns",
    "reduce_ns",
    "copy_ns",
    "waited_ns",
    "waited_percent",
    "sent_network",
    "sent_memory",
    "input_bytes",
)
_COLUMNS = ("runtime", "pg", "operation", "internal", "sequence", "codec", "waited_for", *_NUMBERS)
_SUCCEEDED = "error IS NULL AND started_ns IS NOT NULL ORDER BY finished_ns"


@dataclasses.dataclass
class RankOperations:
    """One rank's operations that succeeded, by the time of their end, as columns.

    Attributes:
        column: By name: times and bytes.
        kind: The number of group and name; see ``Timeline.kinds``.
        internal: 1 if the operation prepares another one.
        call: The number of the call; -1: a message.
        waited_for: The rank in the job for which the operation waited most; -1: none.
        codec: The number of the codec; see ``Timeline.codecs``. 0: none.
        events: Submissions and ends in the order of time: ``row * 2``, plus 1 for an end.
        times: The times of the events.
        submission: By row: where in ``events`` its submission is.
        overlapped: By row: 1 if this rank submitted another operation before this one ended.
    """

    rank: int
    host: str
    column: dict[str, array[int]]
    kind: array[int]
    internal: bytearray
    call: array[int]
    waited_for: array[int]
    codec: array[int]
    events: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    times: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    submission: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    overlapped: bytearray = dataclasses.field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.kind)

    def arrange(self) -> None:
        """Fill in the events."""
        queued, finished = self.column["queued_ns"], self.column["finished_ns"]
        packed = [(time << _ROW_BITS + 1) | (row << 1) for row, time in enumerate(queued)]
        packed += [(time << _ROW_BITS + 1) | (row << 1) | 1 for row, time in enumerate(finished)]
        packed.sort()
        mask = (1 << _ROW_BITS + 1) - 1
        self.events = array("q", (each & mask for each in packed))
        self.times = array("q", (each >> _ROW_BITS + 1 for each in packed))
        self.submission = array("q", bytes(8 * len(self)))
        self.overlapped = bytearray(len(self))
        last_submission = -1
        for position, event in enumerate(self.events):
            row = event >> 1
            if event & 1:
                self.overlapped[row] = last_submission > self.submission[row]
            else:
                self.submission[row] = last_submission = position

    def blocked_ns(self, begin: int, end: int) -> tuple[int, int]:
        """How long the program waited for operations at most, and how long there were any.

        A program that submits does not wait. So it waits at most from the last submission before an
        operation's end to that end.
        """
        blocked = any_in_flight = in_flight = 0
        last = begin
        for time, event in zip(self.times, self.events, strict=True):
            length = max(min(time, end) - max(last, begin), 0) if in_flight > 0 else 0
            any_in_flight += length
            if event & 1:
                blocked += length
                in_flight -= 1
            else:
                in_flight += 1
            last = time
            if time >= end:
                break
        return blocked, any_in_flight


class Timeline:
    """The operations of all ranks of a job, on one clock.

    Attributes:
        ranks: In the order of ``ledgers``.
        calls: By number: rank (index in ``ranks``) and row of each known member.
        kinds: By number: group and name of the operation.
        codecs: By number: names; the first is empty.
        asynchronous: By kind: whether the program submits others while it runs.
    """

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.ranks: list[RankOperations] = []
        self.calls: list[list[tuple[int, int]]] = []
        self.kinds: list[tuple[str, str]] = []
        self.codecs: list[str] = [""]
        self._kind_numbers: dict[tuple[str, str], int] = {}
        self._codec_numbers: dict[str | None, int] = {None: 0}
        self._call_numbers: dict[tuple[str, int], int] = {}
        for ledger in ledgers:
            self._add(ledger)
        self.asynchronous = self._asynchronous()
        self.index = {each.rank: index for index, each in enumerate(self.ranks)}

    def _add(self, ledger: Ledger) -> None:
        at = {name: position for position, name in enumerate(_COLUMNS)}
        groups = ledger.groups()
        rows = list(ledger.rows(_COLUMNS, _SUCCEEDED))
        if len(rows) >= 1 << _ROW_BITS:
            raise ValueError(f"{ledger.path} has more than {1 << _ROW_BITS} operations")
        columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
        operations = RankOperations(
            rank=ledger.rank,
            host=ledger.facts["host"],
            column={name: array("q", columns[at[name]]) for name in _NUMBERS},
            kind=array("q"),
            internal=bytearray(columns[at["internal"]]),
            call=array("q"),
            waited_for=array("q"),
            codec=array("q", (self._codec(name) for name in columns[at["codec"]])),
        )
        index = len(self.ranks)
        self.ranks.append(operations)
        names = ("runtime", "pg", "operation", "sequence", "waited_for")
        chosen = [columns[at[name]] for name in names]
        for row, (runtime, pg, name, sequence, waited_for) in enumerate(zip(*chosen, strict=True)):
            group = groups.get((runtime, pg))
            identity = f"unknown {index} {pg}" if group is None else group["identity"]
            operations.kind.append(self._kind(identity, name))
            number = -1
            if name not in ("send", "receive"):
                key = identity, sequence
                number = self._call_numbers.setdefault(key, len(self.calls))
                if number == len(self.calls):
                    self.calls.append([])
                self.calls[number].append((index, row))
            operations.call.append(number)
            peer = -1
            if waited_for is not None and group is not None:
                peer = group["members"][waited_for]["rank"]
            operations.waited_for.append(peer)
        operations.arrange()

    def _codec(self, name: str | None) -> int:
        number = self._codec_numbers.setdefault(name, len(self.codecs))
        if number == len(self.codecs):
            self.codecs.append(name or "")
        return number

    def _kind(self, identity: str, name: str) -> int:
        number = self._kind_numbers.setdefault((identity, name), len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append((identity, name))
        return number

    def _asynchronous(self) -> list[bool]:
        counts = [[0, 0] for _ in self.kinds]
        for rank in self.ranks:
            for kind, is_overlapped, is_internal in zip(
                rank.kind, rank.overlapped, rank.internal, strict=True
            ):
                if not is_internal:
                    counts[kind][0] += 1
                    counts[kind][1] += is_overlapped
        return [overlapped > _OVERLAPPED_SHARE * count for count, overlapped in counts]

    def span(self) -> tuple[int, int]:
        """The first submission and the last end; (0, 0) if there are no operations."""
        times = [rank.times for rank in self.ranks if len(rank)]
        if not times:
            return 0, 0
        return min(each[0] for each in times), max(each[-1] for each in times)

    def event_before(self, rank: int, time: int) -> int:
        """The position of the last event of a rank that is not later than ``time``."""
        return bisect_right(self.ranks[rank].times, time) - 1
