"""How many steps lie between two synchronisations; all ranks decide it alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from q7x2._core.option_checks import check_positive, check_whole
from q7x2._core.renamed import renamed, renamed_attributes


@renamed_attributes(step="steps")
@dataclass(frozen=True)
class CadenceFacts:
    """What an interval may depend on. All ranks have the same facts, bit for bit.

    Attributes:
        steps: Steps so far, the number of calls of ``DiLoCo.step``.
        step_seconds: The time of one step without communication, on the slowest rank, averaged over
            the last finished interval. 0 until it is known.
        wire_seconds: The time that the messages of the last finished interval took, on the rank
            that came last and so waited for nobody. 0 until it is known.
    """

    steps: int
    step_seconds: float
    wire_seconds: float


Interval = Callable[[CadenceFacts], int]
"""The number of steps until the next synchronisation, from the facts alone."""


@renamed(every="sync_every")
@dataclass(frozen=True)
class PostLocal:
    """Synchronise at every step at first, later at every ``sync_every``-th: post-local SGD.

    Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020 (arXiv 1808.07217).

    Args:
        start: The step from which ranks train locally.
        sync_every: The interval from then on, or another interval.

    Raises:
        ValueError: ``start`` is negative, or ``sync_every`` is no interval.
    """

    start: int
    sync_every: int | Interval

    def __post_init__(self) -> None:
        check_whole("start", self.start, 0)
        interval_of("sync_every", self.sync_every)

    def __call__(self, facts: CadenceFacts) -> int:
        return 1 if facts.steps < self.start else interval_of("sync_every", self.sync_every)(facts)


@dataclass(frozen=True)
class FollowBandwidth:
    """The shortest interval in which messages take at most ``share`` of the computing time.

    With a step of c seconds and messages of w seconds it is w / (share c), rounded up. It is
    ``least`` until both times have been measured.

    Args:
        share: The largest share of the computing time that messages may take, more than 0.
        least: The shortest interval.
        most: The longest interval.

    Raises:
        ValueError: ``share`` is not positive, ``least`` is less than 1, or ``most`` less than
            ``least``.
    """

    share: float = 0.05
    least: int = 1
    most: int = 500

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        check_whole("least", self.least, 1)
        check_whole("most", self.most, self.least)

    def __call__(self, facts: CadenceFacts) -> int:
        if facts.step_seconds <= 0:
            return self.least
        wanted = facts.wire_seconds / (self.share * facts.step_seconds)
        return max(self.least, math.ceil(min(wanted, self.most)))


@renamed(every="sync_every")
@dataclass(frozen=True)
class Tighten:
    """An interval that shrinks late in training, where differences between ranks cost most.

    Before step ``begin`` it is ``sync_every``; then it falls in a straight line to ``last`` of it
    at step ``end`` and stays there.

    Args:
        sync_every: The interval, or another interval.
        begin: The step from which it shrinks.
        end: The step at which it has shrunk.
        last: The share of ``sync_every`` that is left at the end, more than 0 and at most 1. The
            interval is at least 1.

    Raises:
        ValueError: An option is out of its range, or ``sync_every`` is no interval.
    """

    sync_every: int | Interval
    begin: int
    end: int
    last: float = 0.1

    def __post_init__(self) -> None:
        interval_of("sync_every", self.sync_every)
        check_whole("begin", self.begin, 0)
        check_whole("end", self.end, self.begin + 1)
        check_positive("last", self.last)
        if self.last > 1:
            raise ValueError(f"last must be at most 1, got {self.last}")

    def __call__(self, facts: CadenceFacts) -> int:
        done = (facts.steps - self.begin) / (self.end - self.begin)
        share = 1 - (1 - self.last) * min(1.0, max(0.0, done))
        return max(1, round(share * interval_of("sync_every", self.sync_every)(facts)))


def interval_of(name: str, every: Any) -> Interval:
    """An option as a function of the facts; ValueError unless it is an int or can be called."""
    if callable(every):
        interval: Interval = every
        return interval
    check_whole(name, every, 1)
    return lambda facts: int(every)


def describe(every: Any) -> str:
    """``every`` in words that are equal on all ranks and in the next run."""
    if not callable(every):
        return repr(every)
    if is_dataclass(every):
        options = (f"{f.name}={describe(getattr(every, f.name))}" for f in fields(every))
        return f"{type(every).__name__}({', '.join(options)})"
    named = every if hasattr(every, "__qualname__") else type(every)
    return f"{named.__module__}.{named.__qualname__}"
