"""What the ranks of a quorum add to a step, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

MOST_RANKS = 62  # bits of a mask


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
    """The times of a quorum, in seconds.

    Attributes:
        grace: How long the leader waits for more than enough contributions.
        takeover: How long ranks with enough contributions wait for the leader.
        timeout: How long a rank waits for the end of a step.
    """

    grace: float
    takeover: float
    timeout: float
