"""Votes of a quorum in random orders: never two values, and always one in the end."""

from __future__ import annotations

import random

import pytest
from q7x2.late.quorum_vote import Ballot, Kind, Value, Vote


class Ranks:
    """Votes of all ranks, and what is on its way between them; messages may be lost."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = random.Random(seed)
        leader = self.random.randrange(size)
        self.votes = [Vote(rank, size, leader) for rank in range(size)]
        self.held = [1 << rank for rank in range(size)]
        self.mail: list[tuple[int, int, Ballot]] = []

    def say(self, rank: int, ballots: list[Ballot]) -> None:
        for ballot in ballots:
            others = [each for each in range(len(self.votes)) if each != rank]
            self.mail += [
                (rank, to, ballot) for to in (others if ballot.to is None else [ballot.to])
            ]

    def deliver(self, index: int) -> None:
        sender, to, ballot = self.mail.pop(index)
        self.say(to, self.votes[to].hear(sender, ballot, self.held[to]))

    def gain(self, rank: int) -> None:
        """A contribution arrives."""
        self.held[rank] |= 1 << self.random.randrange(len(self.votes))
        self.say(rank, self.votes[rank].accept(self.held[rank]))

    def random_event(self) -> None:
        rank = self.random.randrange(len(self.votes))
        is_enough = self.held[rank].bit_count() >= self.votes[rank].majority
        chance = self.random.random()
        if chance < 0.6 and self.mail:
            index = self.random.randrange(len(self.mail))
            if self.random.random() < 0.2:
                self.mail.pop(index)
            else:
                if self.random.random() < 0.1:
                    self.mail.append(self.mail[index])
                self.deliver(index)
        elif chance < 0.8:
            self.gain(rank)
        elif is_enough and chance < 0.9:
            self.say(rank, self.votes[rank].lead(self.held[rank]))
        elif is_enough and chance < 0.95:
            self.say(rank, self.votes[rank].take_over())
        else:
            to = self.random.randrange(len(self.votes))
            self.say(rank, self.votes[rank].repeat(to) if to != rank else [])

    def decided(self) -> set[Value]:
        return {vote.decided for vote in self.votes if vote.decided is not None}


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_no_two_ranks_decide_differently(size: int) -> None:
    for seed in range(40):
        ranks = Ranks(size, seed)
        for _ in range(300):
            ranks.random_event()
            assert len(ranks.decided()) <= 1, seed
        # A majority that hears each other comes to an end, whatever happened before.
        awake = sorted(ranks.random.sample(range(size), size // 2 + 1))
        whole = (1 << size) - 1
        for rank in awake:
            ranks.held[rank] = whole
        ranks.mail = [each for each in ranks.mail if each[0] in awake and each[1] in awake]
        for turn in range(50):
            if all(ranks.votes[rank].decided for rank in awake):
                break
            rank = awake[turn % len(awake)]
            ranks.say(rank, ranks.votes[rank].take_over())
            while ranks.mail:
                if ranks.mail[0][1] in awake:
                    ranks.deliver(0)
                else:
                    ranks.mail.pop(0)
                ranks.say(rank, ranks.votes[rank].accept(ranks.held[rank]))
        assert all(ranks.votes[rank].decided for rank in awake), seed
        (value,) = ranks.decided()
        holders = [r for r in range(size) if not value.mask & ~ranks.held[r]]
        assert len(holders) >= ranks.votes[0].majority


def test_a_value_is_accepted_only_with_all_its_contributions() -> None:
    vote = Vote(rank=1, world_size=3, leader=0)
    proposal = Ballot(Kind.PROPOSE, 0, Value(0b011, 0))
    assert vote.hear(0, proposal, held=0b010) == []
    assert vote.accept(0b010) == []
    assert vote.accept(0b011) == [Ballot(Kind.ACCEPT, 0, Value(0b011, 0))]
    assert vote.accept(0b011) == []
    vote.hear(0, Ballot(Kind.ACCEPT, 0, Value(0b011, 0)), 0b011)
    assert vote.decided == Value(0b011, 0)
