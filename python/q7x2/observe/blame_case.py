"""What the flight recorders of one group's ranks say, question by question."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from typing import Any

from q7x2._core.units import time_text
from q7x2.observe.dumps import Group, Operation

# What exceptions say of a rank that keeps the others waiting, such as "it has not made this call,
# its process is stopped". Ranks are those in the group.
_LATE = re.compile(r"rank (\d+) \(pid \d+ on [^)]*\) is late: ([^;]+)")
_NOT_MADE = "it has not made this call"
# A rank that came so much later than the others is named, if that is also half of the time that
# the first one waited.
_LATE_SECONDS = 0.1


class Case:
    """One group under inspection. Ranks are those in the group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ranks = list(range(len(group.members)))
        self.absent = [rank for rank in self.ranks if rank not in group.views]
        self.failures = {r: v.failure for r, v in group.views.items() if v.failure}
        self.calls = {r: self._calls(r) for r in group.views}
        self.stuck = self._first_unfinished()
        started = [
            op.submitted
            for ops in self.calls.values()
            for op in ops.values()
            if op.sequence == self.stuck
        ]
        self.at = min(
            [failure.at for failure in self.failures.values()] or started or [float("inf")]
        )

    def _calls(self, rank: int) -> dict[int, Operation]:
        """Collectives by sequence number, without those that came after the group had failed."""
        view = self.group.views[rank]
        end = view.failure.at if view.failure else float("inf")
        return {
            op.sequence: op for op in view.operations if not op.is_message and op.submitted <= end
        }

    def _first_unfinished(self) -> int | None:
        unfinished = [
            op.sequence for ops in self.calls.values() for op in ops.values() if op.state != "done"
        ]
        return min(unfinished, default=None)

    # ---------------------------------------------------------------------------------- helpers

    def _came(self, sequence: int) -> dict[int, Operation]:
        return {r: ops[sequence] for r, ops in self.calls.items() if sequence in ops}

    def _user_call(self, rank: int, sequence: int) -> Operation | None:
        """The user's call that the operation is, or that it prepares.

        A call may be submitted when what prepares it has failed already.
        """
        later = [
            op
            for op in self.group.views[rank].operations
            if not op.is_message and not op.is_internal and op.sequence >= sequence
        ]
        return min(later, key=lambda op: op.sequence, default=None)

    def _call_text(self, sequence: int) -> str:
        for rank in sorted(self._came(sequence)):
            call = self._user_call(rank, sequence)
            if call:
                return f"{call.text} (sequence {call.sequence})"
        return f"operation {sequence}"

    def _waited(self, rank: int, sequence: int) -> float:
        """How long the rank has been in the operation."""
        return self._end(rank) - self.calls[rank][sequence].submitted

    def _end(self, rank: int) -> float:
        """When the rank's group failed, or else when its dump was written."""
        view = self.group.views[rank]
        return view.failure.at if view.failure else view.taken

    def _last_deed(self, rank: int) -> str:
        done = [op for op in self.calls[rank].values() if op.finished is not None]
        if not done:
            return "it had made no call on the group"
        last = max(done, key=lambda op: op.sequence)
        call = self._user_call(rank, last.sequence) or last
        assert last.finished is not None
        since = time_text(self._end(rank) - last.finished)
        return f"its last call, {call.text}, was over {since} before"

    def found_late(self) -> str:
        """What the exceptions of other ranks say of those that keep them waiting.

        Empty if none says more than that such a rank has not made the call.
        """
        witnesses: dict[tuple[int, str], list[int]] = {}
        for witness, failure in sorted(self.failures.items()):
            for number, said in set(_LATE.findall(failure.text)):
                rank = int(number)
                parts = [part for part in said.strip().split(", ") if part != _NOT_MADE]
                if parts and rank != witness and rank < len(self.ranks):
                    witnesses.setdefault((rank, ", ".join(parts)), []).append(witness)
        return "".join(
            f"; {self.group.names(ranks)} found {self.group.describe(rank)} late: {said}"
            for (rank, said), ranks in witnesses.items()
        )

    # -------------------------------------------------------------------------------- questions

    def mismatch(self) -> str | None:
        for sequence in sorted({s for ops in self.calls.values() for s in ops}):
            came = self._came(sequence)
            if len({(op.kind, op.fingerprint) for op in came.values()}) > 1:
                return self._mismatch_at(sequence, came)
        return None

    def _mismatch_at(self, sequence: int, came: dict[int, Operation]) -> str:
        callers: dict[str, list[int]] = {}
        for rank in sorted(came):
            call = self._user_call(rank, sequence) or came[rank]
            callers.setdefault(call.text, []).append(rank)
        # The majority first.
        sides = sorted(callers.items(), key=lambda side: (-len(side[1]), side[1]))
        if len(sides) > 1:
            called = ", ".join(f"{self.group.names(ranks)} called {text}" for text, ranks in sides)
            return f"ranks made different calls at sequence {sequence}: {called}"
        prints: dict[str, list[int]] = {}
        for rank, op in sorted(came.items()):
            prints.setdefault(op.fingerprint, []).append(rank)
        parties = " and ".join(self.group.names(ranks) for ranks in prints.values())
        return (
            f"{parties} disagree about {self._call_text(sequence)}: its dtype, its split sizes, "
            f"its codec or its algorithm"
        )

    def death(self) -> str | None:
        accused = Counter(
            f.rank
            for f in self.failures.values()
            if f.code == "peer failed" and self._may_have_failed(f.rank)
        )
        if not accused:
            return None
        culprit = accused.most_common(1)[0][0]
        witnesses = [r for r, f in self.failures.items() if f.rank == culprit and r != culprit]
        said = self.failures[(witnesses or list(self.failures))[0]].text
        reason = said.split(" failed: ", 1)[-1]
        during = f", during {self._call_text(self.stuck)}" if self.stuck is not None else ""
        if culprit not in self.group.views:
            return f"{self.group.describe(culprit)} died: {reason}{during}"
        return (
            f"the connection between {self.group.names(witnesses)} and "
            f"{self.group.describe(culprit)} broke, and both sides live: {reason}{during}"
        )

    def _may_have_failed(self, rank: int) -> bool:
        """Not a rank whose group failed for another reason, and which ended after that."""
        own = self.failures.get(rank)
        return rank >= 0 and (own is None or own.code == "peer failed")

    def absence(self) -> str | None:
        if self.stuck is None:
            return None
        came = self._came(self.stuck)
        call = self._call_text(self.stuck)
        longest = max(came, key=lambda rank: self._waited(rank, self.stuck or 0))
        span = time_text(self._waited(longest, self.stuck))
        waited = f"{self.group.names(sorted(came))} waited {span} for it"
        missing = [r for r in self.group.views if r not in came and not self._has_passed(r)]
        if missing:
            deeds = self._last_deed(missing[0]) if len(missing) == 1 else ""
            names = (
                self.group.describe(missing[0]) if len(missing) == 1 else self.group.names(missing)
            )
            return f"{names} never came to {call}: {waited}" + (f"; {deeds}" if deeds else "")
        if self.absent:
            return (
                f"{self.group.names(self.absent)} left no dump and may never have come to {call}: "
                f"{waited}"
            )
        return None

    def _has_passed(self, rank: int) -> bool:
        """Whether the ring has lost the operation because the rank is far beyond it."""
        assert self.stuck is not None
        sequences = self.calls[rank]
        return bool(sequences) and min(sequences) > self.stuck

    def lateness(self) -> str | None:
        if self.stuck is None:
            return None
        came = self._came(self.stuck)
        waits = {rank: self._waited(rank, self.stuck) for rank in came}
        if len(waits) < 2:
            return None
        last = min(waits, key=lambda rank: waits[rank])
        late = statistics.median(w for rank, w in waits.items() if rank != last) - waits[last]
        if late < _LATE_SECONDS or late < max(waits.values()) / 2:
            return None
        return (
            f"{self.group.describe(last)} was late: it came to {self._call_text(self.stuck)} "
            f"{time_text(late)} after the others"
        )

    def link(self) -> str | None:
        """The message that one rank waits to send, and the other one to receive.

        If there is none: who waits for a rank that waits for nobody else, or else for the rank that
        most wait for. A rank that messages reached until shortly before its end is no witness: it
        may have been stopped, and gone on when the others had given up.
        """
        if self.stuck is None:
            return None
        came = self._came(self.stuck)
        unfinished = {rank: op for rank, op in sorted(came.items()) if op.state != "done"}
        heard = {rank: op.progressed or op.submitted for rank, op in unfinished.items()}
        silence = {rank: self._end(rank) - at for rank, at in heard.items()}
        longest = max(silence.values(), default=0.0)
        waits = [
            (rank, wait)
            for rank, op in unfinished.items()
            for wait in op.waits
            if 0 <= wait["rank"] < len(self.group.members) and silence[rank] >= longest / 2
        ]
        if not waits:
            return None

        waiters = Counter(wait["rank"] for _, wait in waits)

        def evidence(each: tuple[int, dict[str, Any]]) -> tuple[bool, bool, bool, int]:
            rank, wait = each
            other = came.get(wait["rank"])
            back = [] if other is None or other.state == "done" else other.waits
            is_under_way = any(b["rank"] == rank and b["for"] != wait["for"] for b in back)
            is_end = all(b["rank"] == rank for b in back)
            return is_under_way, is_end, wait["for"] == "receive", waiters[wait["rank"]]

        rank, wait = max(waits, key=evidence)
        other = wait["rank"]
        verb = "to receive from" if wait["for"] == "receive" else "to send to"
        since = ""
        if came[rank].progressed is not None:
            since = f"; its last message was {time_text(silence[rank])} before"
        return (
            f"the link between {self.group.describe(other)} and {self.group.describe(rank)} is "
            f"stuck: in {self._call_text(self.stuck)}, to which all came, "
            f"{self.group.names([rank])} waits {verb} {self.group.names([other])} over "
            f"{wait['via']}{since}"
        )

    def message(self) -> str | None:
        """A point-to-point message that did not arrive."""
        for rank, view in sorted(self.group.views.items()):
            for op in view.operations:
                if op.is_message and op.state != "done":
                    self.at = min(self.at, op.finished or op.submitted)
                    return self._message(rank, op)
        return None

    def _message(self, rank: int, op: Operation) -> str:
        group = self.group
        verb = "to receive" if op.kind == "recv" else "to send"
        if op.peer < 0:
            return f"{group.describe(rank)} waits {verb} a {op.text} from any rank, and none came"
        relation = "from" if op.kind == "recv" else "to"
        wants = f"{group.names([rank])} waits {verb} a {op.text} {relation}"
        if op.peer in self.absent:
            return f"{wants} {group.names([op.peer])}, which left no dump"
        counterpart = "send" if op.kind == "recv" else "recv"
        mine = self._alike(rank, op.kind, op.peer, op.tag)
        theirs = self._alike(op.peer, counterpart, rank, op.tag)
        complete = group.views[rank].is_complete and group.views[op.peer].is_complete
        if complete and len(theirs) <= mine.index(op):
            deed = "sent" if counterpart == "send" else "asked for"
            return f"{group.describe(op.peer)} never {deed} the message: {wants} it"
        return (
            f"the link between {group.describe(op.peer)} and {group.describe(rank)} is stuck: "
            f"{wants} {group.names([op.peer])}, which has made its call"
        )

    def _alike(self, rank: int, kind: str, peer: int, tag: int) -> list[Operation]:
        return [
            op
            for op in self.group.views[rank].operations
            if op.kind == kind and op.peer == peer and op.tag == tag
        ]

    def failure(self) -> str | None:
        if not self.failures:
            return None
        first = min(self.failures.values(), key=lambda failure: failure.at)
        return f"failed: {first.text}"
