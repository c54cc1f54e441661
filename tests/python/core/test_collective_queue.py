"""Collectives that are started in one order, a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from q7x2._core.collective_queue import CollectiveQueue


class Work:
    """A collective that a test ends."""

    def __init__(self, name: int, log: list[int]) -> None:
        self.name, self.log = name, log
        self.callbacks: list[Callable[[Any], None]] = []
        self.has_ended = False

    def start(self) -> Work:
        self.log.append(self.name)
        return self

    def get_future(self) -> Work:
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def wait(self) -> None:
        self.has_ended = True

    def end(self) -> None:
        for callback in self.callbacks:
            callback(self)


def test_collectives_start_in_order_and_a_few_at_once() -> None:
    log: list[int] = []
    works = [Work(name, log) for name in range(5)]
    queue = CollectiveQueue(window=2)
    queue.begin([work.start for work in works])
    queue.set_ready(1)
    assert log == []  # the first one is not ready
    for number in (0, 2, 3, 4):
        queue.set_ready(number)
    assert log == [0, 1]
    works[1].end()
    assert log == [0, 1, 2]
    queue.wait(3)  # whoever waits does not wait for the window
    assert log == [0, 1, 2, 3]
    assert works[3].has_ended
    for number in (0, 2, 3):
        works[number].end()
    assert log == [0, 1, 2, 3, 4]


def test_an_error_of_a_collective_that_a_callback_starts_is_raised_by_wait() -> None:
    log: list[int] = []

    class Broken(Work):
        def start(self) -> Work:
            raise ConnectionError("the group has failed")

    works = [Work(0, log), Broken(1, log)]
    queue = CollectiveQueue(window=1)
    queue.begin([work.start for work in works])
    queue.set_ready(0)
    queue.set_ready(1)
    works[0].end()
    with pytest.raises(ConnectionError, match="the group has failed"):
        queue.wait(1)


def test_what_happens_to_collectives_is_noted() -> None:
    log: list[int] = []
    noted: list[tuple[str, int]] = []
    works = [Work(name, log) for name in range(2)]
    queue = CollectiveQueue(1, lambda *what: noted.append(what))
    queue.begin([work.start for work in works])
    queue.set_ready(1)
    queue.set_ready(0)
    works[0].end()
    assert noted == [("ready", 1), ("ready", 0), ("ended", 0)]
    assert log == [0, 1]


def test_an_end_that_comes_after_the_next_order_has_begun_is_not_noted() -> None:
    log: list[int] = []
    noted: list[tuple[str, int]] = []
    works = [Work(name, log) for name in range(2)]
    queue = CollectiveQueue(1, lambda *what: noted.append(what))
    queue.begin([works[0].start])
    queue.set_ready(0)
    queue.wait(0)
    queue.begin([works[1].start])
    works[0].end()
    queue.set_ready(0)
    assert noted == [("ready", 0), ("ready", 0)]
    assert log == [0, 1]
    works[1].end()
    assert noted[2:] == [("ended", 0)]


def test_collectives_may_be_added_one_by_one() -> None:
    log: list[int] = []
    works = [Work(name, log) for name in range(3)]
    queue = CollectiveQueue(window=1)
    for work in works:
        queue.add(work.start)
    assert log == [0]
    works[0].end()
    assert log == [0, 1]
    queue.wait(2)
    assert log == [0, 1, 2]
    assert works[2].has_ended


def test_collectives_that_do_not_tell_their_end_are_all_started() -> None:
    log: list[int] = []

    class Silent(Work):
        def get_future(self) -> Work:
            raise RuntimeError("not implemented")

    queue = CollectiveQueue(window=1)
    for name in range(3):
        queue.add(Silent(name, log).start)
    assert log == [0, 1, 2]
