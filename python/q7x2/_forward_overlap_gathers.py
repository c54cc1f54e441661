"""The all-gathers of new weights: in one order on all ranks, a few of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol


class Gathered(Protocol):
    """What is gathered: a chunk."""

    def start_gather(self) -> Any:
        """Begins the all-gather and returns its Work."""


class GatherQueue:
    """Starts all-gathers in a fixed order, as soon as their input is there.

    c10d matches collectives by the order in which they are called, so ranks must not start them in
    the order in which their shards happen to be ready. A few are in progress at once, so the first
    ones have the network for themselves. When one ends, its callback starts the next one, whatever
    the training's thread is doing.

    Args:
        window: How many are in progress at once.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        # A callback runs in the thread that adds it if the work has ended already.
        self._lock = threading.RLock()
        self._order: list[Gathered] = []
        self._works: list[Any] = []  # of the first ones in the order
        self._ready: set[int] = set()
        self._running = 0
        self._error: Exception | None = None

    def begin(self, order: Sequence[Gathered]) -> None:
        """All of the last order have been waited for: these are next."""
        with self._lock:
            self._order, self._works = list(order), []
            self._ready.clear()

    def set_ready(self, index: int) -> None:
        """The input of the all-gather number ``index`` is there."""
        with self._lock:
            self._ready.add(index)
            self._start()

    def wait(self, index: int) -> None:
        """Return when the all-gather number ``index`` has ended; the ones before it are started.

        Raises what the all-gather raises.
        """
        with self._lock:
            while len(self._works) <= index:
                if self._error is not None:
                    raise self._error
                self._start_next()
            work = self._works[index]
        work.wait()

    def _start(self) -> None:
        while (
            self._error is None and self._running < self._window and len(self._works) in self._ready
        ):
            self._start_next()

    def _start_next(self) -> None:
        work = self._order[len(self._works)].start_gather()
        self._works.append(work)
        self._running += 1
        work.get_future().add_done_callback(self._end)

    def _end(self, future: Any) -> None:
        with self._lock:
            self._running -= 1
            try:
                self._start()
            except Exception as error:  # the group has failed: `wait` raises it
                self._error = error
