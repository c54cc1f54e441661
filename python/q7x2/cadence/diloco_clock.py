"""How long ranks compute, wait and send: what stats and intervals are made of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from q7x2.cadence.diloco_fragment import Fragment, Trip


@dataclass(frozen=True)
class DiLoCoStats:
    """What a :class:`DiLoCo` has done on this rank since it was made.

    Attributes:
        steps: The number of calls of ``step``.
        outer_steps: The number of outer steps of fragments.
        rolled_back: The number of outer gradients that were sent but not applied, because a message
            failed.
        signal_bytes: The bytes of the outer gradients that were sent, as float32.
        message_bytes: The bytes that went into all-reduces instead; for selections an estimate. On
            the wire each rank sends and receives 2 (n - 1) / n times as many. With a selection it
            is up to n times as many, because a sum has every element that any rank has selected.
            With a quorum each rank sends them to all others.
        compute_seconds: Seconds between synchronisations: the caller's forward and backward, and
            the inner optimizer.
        waited_seconds: Seconds in which ``step`` waited for messages. The rest of ``step``'s own
            time counts in neither.
        counted: With a quorum, the number of outer steps that this rank's outer gradient was part
            of.
        missed: With a quorum, the number of outer steps that were closed without it, and that this
            rank followed.
        skipped: With a quorum, the number of outer steps after which this rank took the weights of
            another one, because it was far behind.
        staleness: With a quorum, the number of outer steps in a row in which this rank's outer
            gradients have not counted.
    """

    steps: int = 0
    outer_steps: int = 0
    rolled_back: int = 0
    signal_bytes: int = 0
    message_bytes: int = 0
    compute_seconds: float = 0.0
    waited_seconds: float = 0.0
    counted: int = 0
    missed: int = 0
    skipped: int = 0
    staleness: int = 0

    @property
    def utilisation(self) -> float:
        """The share of time in which this rank did not wait for messages; 1 before the first."""
        total = self.compute_seconds + self.waited_seconds
        return self.compute_seconds / total if total else 1.0


class Clock:
    """Times of one rank, in seconds.

    Attributes:
        step_seconds: The mean time of a step without communication, in the last finished interval.
        wire_seconds: The time of the messages that arrived in the last finished interval.
    """

    def __init__(self) -> None:
        self.step_seconds = 0.0
        self.wire_seconds = 0.0
        self._since = time.monotonic()
        self._steps = self._interval_steps = 0
        self._computed = self._interval_computed = 0.0
        self._waited = 0.0
        self._trips: list[Trip] = []
        self._outer_steps = self._rolled_back = 0
        self._signal_bytes = self._message_bytes = 0

    def computed(self) -> None:
        """The caller has taken a step since `resume`."""
        seconds = time.monotonic() - self._since
        self._computed += seconds
        self._interval_computed += seconds
        self._steps += 1
        self._interval_steps += 1

    def resume(self) -> None:
        """What follows is the caller's."""
        self._since = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - begin

    def sent(self, fragment: Fragment) -> None:
        """An outer gradient has left."""
        self._signal_bytes += 4 * fragment.weights.numel()
        self._message_bytes += fragment.message_bytes

    def rolled_back(self) -> None:
        """An outer gradient that had left is forgotten."""
        self._rolled_back += 1

    def applied(self, trip: Trip) -> None:
        self._outer_steps += 1
        self._trips.append(trip)

    def close_interval(self) -> None:
        """The last outer gradient of an interval is about to leave."""
        if self._interval_steps:
            self.step_seconds = self._interval_computed / self._interval_steps
        self.wire_seconds = sum(trip.seconds for trip in self._trips)
        self._trips.clear()
        self._interval_steps, self._interval_computed = 0, 0.0

    def stats(self) -> DiLoCoStats:
        return DiLoCoStats(
            steps=self._steps,
            outer_steps=self._outer_steps,
            rolled_back=self._rolled_back,
            signal_bytes=self._signal_bytes,
            message_bytes=self._message_bytes,
            compute_seconds=self._computed,
            waited_seconds=self._waited,
        )
