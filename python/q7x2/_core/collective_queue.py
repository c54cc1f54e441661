"""Collectives that are started in one order on all ranks, a few of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Start = Callable[[], Any]
"""Starts a collective, and returns its Work."""


class CollectiveQueue:
    """Starts collectives in a fixed order, as soon as their input is there.

    c10d matches collectives by the order in which they are called, so ranks must not start them in
    the order in which their input happens to be ready. A few are in progress at once, so the first
    ones have the network for themselves, and few messages meet at one rank. When one ends, its
    callback starts the next one, whatever the training's thread is doing. A Work without a future,
    as Gloo's of a reduce-scatter, does not tell its end: all are started as soon as they are ready.

    Args:
        window: How many are in progress at once.
        note: Called with ``"ready"`` and a number when the input of that collective is there, and
            with ``"ended"`` when it has ended, unless the next order has begun.
    """

    def __init__(self, window: int, note: Callable[[str, int], None] = lambda *_: None) -> None:
        self._window: float = window
        self._note = note
        # A callback runs in the thread that adds it if the work has ended already.
        self._lock = threading.RLock()
        self._order: list[Start] = []
        self._works: list[Any] = []  # those of the first collectives in the order
        self._ready: set[int] = set()
        self._running = 0
        self._error: Exception | None = None

    def begin(self, order: Sequence[Start]) -> None:
        """All of the last order have been waited for: these are next."""
        with self._lock:
            self._order, self._works = list(order), []
            self._ready.clear()

    def add(self, start: Start) -> None:
        """One more at the end of the order, whose input is there."""
        with self._lock:
            self._order.append(start)
            index = len(self._order) - 1
        self.set_ready(index)

    def set_ready(self, index: int) -> None:
        """The input of the collective number ``index`` is there."""
        self._note("ready", index)
        with self._lock:
            self._ready.add(index)
            self._start()

    def wait(self, index: int) -> None:
        """Return when the collective number ``index`` has ended; those before it are started.

        Raises what the collective raises.
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
        index = len(self._works)
        work = self._order[index]()
        self._works.append(work)
        try:
            future = work.get_future()
        except RuntimeError:
            self._window = float("inf")
            return
        self._running += 1
        order = self._order
        future.add_done_callback(lambda _: self._end(order, index))

    def _end(self, order: list[Start], index: int) -> None:
        if order is self._order:  # this may come after the work was waited for
            self._note("ended", index)
        with self._lock:
            self._running -= 1
            try:
                self._start()
            except Exception as error:  # the group has failed: `wait` raises it
                self._error = error
