"""What the ranks of a quorum tell each other, and what a step comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

MOST_RANKS = 62  # bits of a mask


class Other(IntEnum):
    """Kinds of messages beside those of votes."""

    CONTRIBUTION = 11  # with a payload
    ASK = 12  # the sender waits for the end of its step
    DECIDED = 13  # the value of a step
    NEED = 14  # the sender lacks the contributions of the mask
    WANT = 15  # the sender is behind and wants a state
    STATE = 16  # with a payload: the state before the step
    DONE = 17  # the sender takes part in no further step


class Header(NamedTuple):
    """The numbers of a message.

    Attributes:
        kind: A ``Kind`` of votes, or ``Other``.
        step: What the message is about.
        at: The sender's own step.
        origin: The rank whose contribution is the payload.
        ballot: The number of the ballot.
        accepted: The ballot in which the value was accepted; -1: none.
        mask: Ranks, one bit each.
        leader: The rank that has proposed the mask; with a state, the next step.
        weight: The bits of a contribution's weight.
    """

    kind: int
    step: int
    at: int
    origin: int = 0
    ballot: int = 0
    accepted: int = -1
    mask: int = 0
    leader: int = 0
    weight: int = 0


@dataclass(frozen=True)
class Contribution:
    """What one rank adds to a step.

    Attributes:
        data: A vector of uint8.
        weight: Samples that it stands for, at least 0.
    """

    data: Tensor
    weight: float


@dataclass(frozen=True)
class Closed:
    """How a step ended.

    Attributes:
        mask: The ranks that count, one bit per rank; 0 if ``state`` is given.
        contributions: Those of the mask, by rank.
        state: The state of another rank, after which this one goes on; a vector of uint8.
        step: The step that comes next.
    """

    mask: int
    contributions: dict[int, Contribution]
    state: Tensor | None
    step: int


@dataclass
class Timing:
    """Of a quorum, in seconds.

    Attributes:
        grace: How long the leader waits for more than enough contributions.
        takeover: How long ranks with enough contributions wait for the leader.
        timeout: How long a rank waits for the end of a step.
    """

    grace: float
    takeover: float
    timeout: float
