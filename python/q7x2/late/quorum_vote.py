"""How the ranks agree which contributions a step counts, though any minority may be stopped.

It is single-decree Paxos (Lamport, "Paxos made simple", 2001), once per step. The value is the set
of contributions. A rank accepts a value only when it holds all contributions of the set, so a
majority can compute the result of every value that may be chosen::

    leader        PROPOSE ballot 0, ranks {0, 1, 3} --> all
    each rank     ACCEPT ballot 0 --> all                 once it holds the three contributions
    each rank     decided                                 once a majority has accepted the ballot

The leader of a step is the rank that proposed the value of the step before, so its ballot 0 needs
no preparation. If it is stopped, another rank takes over with a higher ballot: it asks a majority
what they have accepted (PREPARE, PROMISE), and proposes that, or else what it holds itself.

There is no I/O and no clock here. Messages may be lost, repeated and reordered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Value(NamedTuple):
    """What is decided: the contributions that count, one bit per rank, and the next leader."""

    mask: int
    leader: int


class Kind(IntEnum):
    """Of a ballot's messages; others follow in ``quorum_exchange``."""

    PROPOSE = 1
    ACCEPT = 2
    PREPARE = 3
    PROMISE = 4


@dataclass(frozen=True)
class Ballot:
    """A message of a vote.

    Attributes:
        to: The receiver; None: all other ranks.
        value: What is proposed or accepted. Of a promise: what was accepted at ``accepted``.
        accepted: Of a promise: the ballot of the value; -1 if there is none.
    """

    kind: Kind
    ballot: int
    value: Value
    to: int | None = None
    accepted: int = -1


_NOTHING = Value(0, 0)


@dataclass
class Vote:
    """One rank's part in the vote of one step.

    Args:
        rank: This rank.
        world_size: The number of ranks.
        leader: The only rank that may propose without preparation; equal on all ranks.

    Attributes:
        decided: The value, once this rank knows it. It is equal on all ranks that know one.
        proposal: A ballot and value that this rank will accept as soon as it can.
        source: Who holds the contributions of the proposal.
    """

    rank: int
    world_size: int
    leader: int
    decided: Value | None = None
    proposal: tuple[int, Value] | None = None
    source: int = -1
    _promised: int = 0
    _accepted: tuple[int, Value] | None = None
    _accepts: dict[int, set[int]] = field(default_factory=dict)
    _mine: int = -1  # the ballot that this rank has prepared or proposed
    _promises: dict[int, tuple[int, Value]] = field(default_factory=dict)
    _proposed: Value | None = None

    @property
    def majority(self) -> int:
        return self.world_size // 2 + 1

    def lead(self, held: int) -> list[Ballot]:
        """Propose what this rank holds, as the leader; nothing if it has done so."""
        if self.rank != self.leader or self._mine >= 0 or self._promised > 0:
            return []
        self._mine = 0
        return self._propose(Value(held, self.rank), self.rank)

    def take_over(self) -> list[Ballot]:
        """Prepare a ballot higher than any that this rank knows."""
        rounds = max(self._promised, self._mine) // self.world_size + 1
        self._mine = self._promised = rounds * self.world_size + self.rank + 1
        self._promises, self._proposed = {}, None
        self._promises[self.rank] = self._accepted or (-1, _NOTHING)
        return [Ballot(Kind.PREPARE, self._mine, _NOTHING)]

    def hear(self, sender: int, message: Ballot, held: int) -> list[Ballot]:
        """What a message makes this rank say.

        Args:
            held: The contributions that this rank holds.
        """
        ballot = message.ballot
        if message.kind == Kind.PROPOSE and ballot >= self._promised:
            self._promised, self.proposal, self.source = ballot, (ballot, message.value), sender
            return self.accept(held)
        if message.kind == Kind.ACCEPT:
            self._count(sender, ballot, message.value)
        elif message.kind == Kind.PREPARE and ballot > self._promised:
            self._promised, self.proposal = ballot, None
            accepted, value = self._accepted or (-1, _NOTHING)
            return [Ballot(Kind.PROMISE, ballot, value, sender, accepted)]
        elif message.kind == Kind.PROMISE and ballot == self._mine and self._proposed is None:
            self._promises[sender] = message.accepted, message.value
            if len(self._promises) >= self.majority:
                rank = max(self._promises, key=lambda each: (self._promises[each][0], -each))
                accepted, value = self._promises[rank]
                if accepted < 0:
                    return self._propose(Value(held, self.rank), self.rank)
                return self._propose(value, rank)
        return []

    def accept(self, held: int) -> list[Ballot]:
        """Accept what was proposed, if this rank holds all of it by now."""
        if self.proposal is None or self.proposal == self._accepted:
            return []
        ballot, value = self.proposal
        if ballot < self._promised or value.mask & ~held:
            return []
        self._accepted = self.proposal
        self._count(self.rank, ballot, value)
        return [Ballot(Kind.ACCEPT, ballot, value)]

    def repeat(self, to: int) -> list[Ballot]:
        """What a rank that lacks messages may have missed."""
        messages = []
        if self._proposed is not None and self._mine == self._promised:
            messages.append(Ballot(Kind.PROPOSE, self._mine, self._proposed, to))
        if self._accepted is not None:
            messages.append(Ballot(Kind.ACCEPT, *self._accepted, to=to))
        return messages

    def _propose(self, value: Value, source: int) -> list[Ballot]:
        # Who leads the next step is the same for all that decide this value, at whatever ballot.
        self._proposed, self.proposal, self.source = value, (self._mine, value), source
        return [Ballot(Kind.PROPOSE, self._mine, value)]

    def _count(self, rank: int, ballot: int, value: Value) -> None:
        ranks = self._accepts.setdefault(ballot, set())
        ranks.add(rank)
        if len(ranks) >= self.majority:
            self.decided = value
