"""How far ranks lag behind each other, and when their gradients are applied because of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from q7x2._core.option_checks import check_factor, check_positive, check_whole
from q7x2._core.renamed import renamed_attributes
from q7x2.policy.cadence import describe

MODES = ("eager", "buffered", "epochs")


@renamed_attributes(version="steps")
@dataclass(frozen=True)
class LagFacts:
    """What a mode may depend on. All ranks have the same facts, bit for bit.

    The *lag* of a rank is the number of gradients of other ranks that were applied while it
    computed one, divided by the number of other ranks, and averaged over its last gradients. So it
    is about 1 if all ranks are equally fast, and f on a rank that is f times slower than all
    others. In the mode ``"epochs"`` nothing is applied meanwhile. There the times of backwards say
    what the lag would be.

    Attributes:
        steps: The number of versions of the weights so far.
        mode: The current mode.
        since: Versions since the mode became the current one.
        mean: The mean of the lags of all ranks; 0 until one is known.
        spread: The largest lag less the smallest one; 0 until two are known.
    """

    steps: int
    mode: str
    since: int
    mean: float
    spread: float


@renamed_attributes(version="steps")
@dataclass(frozen=True)
class LagEvent:
    """A mode became the current one.

    Attributes:
        steps: The number of versions that were made before it.
        mode: ``"eager"``, ``"buffered"`` or ``"epochs"``.
        mean: The mean of the lags of all ranks when it was chosen.
        spread: The largest lag less the smallest one.
    """

    steps: int
    mode: str
    mean: float
    spread: float


Mode = Callable[[LagFacts], str]
"""The mode in which the next version is made, from the facts alone."""


@dataclass(frozen=True)
class FollowLag:
    """Eager while ranks are about equally fast, buffered if they lag, in epochs if they lag far.

    It compares the sum of the mean and the spread of the lags with two limits. This is about 1 for
    equal ranks, and about 1.3 f if one of four ranks is f times slower than the others. To switch
    back, the sum must be below the limit by ``margin``.

    Args:
        buffered: The lag above which the mode is ``"buffered"``.
        epochs: The lag above which the mode is ``"epochs"``; more than ``buffered``.
        margin: The share of a limit by which the lag must be below it to switch back, at least 0
            and less than 1.
        hold: The number of versions for which a mode holds at least.

    Raises:
        ValueError: An option is out of range.
    """

    buffered: float = 3.0
    epochs: float = 10.0
    margin: float = 0.25
    hold: int = 20

    def __post_init__(self) -> None:
        check_positive("buffered", self.buffered)
        check_positive("epochs", self.epochs)
        if self.epochs <= self.buffered:
            raise ValueError(f"epochs must be more than buffered, got {self.epochs}")
        check_factor("margin", self.margin)
        check_whole("hold", self.hold, 1)

    def __call__(self, facts: LagFacts) -> str:
        if facts.since < self.hold:
            return facts.mode
        lag, now = facts.mean + facts.spread, MODES.index(facts.mode)
        up, down = self._level(lag, 1.0), self._level(lag, 1.0 - self.margin)
        return MODES[max(up, min(down, now))]

    def _level(self, lag: float, share: float) -> int:
        return (lag > share * self.buffered) + (lag > share * self.epochs)


def mode_of(mode: Any) -> Mode:
    """``mode`` as a function of the facts; ValueError unless it is a mode or can be called."""
    if callable(mode):
        function: Mode = mode
        return function
    check_mode(mode)
    return lambda facts: str(mode)


def check_mode(mode: Any) -> None:
    """Raise ValueError unless ``mode`` is the name of a mode."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, or a function, got {mode!r}")


def describe_mode(mode: Any) -> str:
    """``mode`` in words that are equal on all ranks and in the next run."""
    return describe(mode)
