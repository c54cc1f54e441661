"""``StaleSGDStats``: the figures of a ``StaleSGD``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StaleSGDStats:
    """What a :class:`StaleSGD` has done on this rank since it was made.

    Attributes:
        steps: The number of calls of ``step``, which is the number of backwards of this rank.
        sent: The number of gradients that this rank has sent. In the mode ``"epochs"`` each is the
            sum of those of ``send_every`` backwards.
        staleness: The staleness of the last gradient: the number of versions between the weights
            that it was computed with and those that it was applied to.
        largest_staleness: The largest staleness of all gradients.
        waited_seconds: Seconds in which ``step`` and ``flush`` waited for other ranks.
    """

    steps: int = 0
    sent: int = 0
    staleness: int = 0
    largest_staleness: int = 0
    waited_seconds: float = 0.0
