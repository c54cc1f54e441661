"""Steps during backward, on the chunks that the next forward needs last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from q7x2._core.collective_queue import CollectiveQueue
from q7x2.overlap.chunk import Chunk


class EarlySteps:
    """Steps on each chunk as soon as its gradients are there, in a callback of its reduce-scatter.

    The network is free for the all-gathers of these chunks while backward goes on. The parameters
    do not change before ``optimizer.step()``, but the optimizer's state does. So each backward must
    be followed by a step, and nothing may change gradients in between.

    Args:
        chunks: The first ones of the queue's order, in the order of their reduce-scatters.
    """

    def __init__(
        self, chunks: Sequence[Chunk], queue: CollectiveQueue, optimizer: torch.optim.Optimizer
    ) -> None:
        self._numbers = {chunk: number for number, chunk in enumerate(chunks)}
        self._queue, self._optimizer = queue, optimizer
        self._done = [threading.Event() for _ in chunks]
        self._errors: list[Exception] = []
        self._is_under_way = False

    def begin(self) -> None:
        """A backward begins.

        Raises RuntimeError if the optimizer has not stepped since the last one.
        """
        self.check("a second backward")
        for each in self._done:
            each.clear()
        self._is_under_way = bool(self._numbers)

    def follow(self, chunk: Chunk) -> None:
        """The reduce-scatter of ``chunk`` has begun: step when it has ended."""
        number = self._numbers.get(chunk)
        if number is not None:
            chunk.when_scattered(lambda future: self._step(number, chunk, future))

    def end(self) -> int:
        """Return the number of steps when all have been taken; raises what they raised.

        It is 0 if they were not among this backward's.
        """
        if not self._is_under_way:
            return 0
        for chunk, number in self._numbers.items():
            chunk.wait()
            self._done[number].wait()
        self._is_under_way = False
        if self._errors:
            raise self._errors.pop()
        return len(self._numbers)

    def check(self, what: str) -> None:
        """Raises RuntimeError between the first step of a backward and the optimizer's."""
        if self._is_under_way:
            raise RuntimeError(
                f"OverlapOptions(early=...) steps during backward: {what} must come after the step "
                "of the optimizer, or use early=0"
            )

    def _step(self, number: int, chunk: Chunk, future: Any) -> None:
        try:
            future.value()  # raises if the collective failed
            chunk.step(self._optimizer)
            self._queue.set_ready(number)
        except Exception as error:  # `end` raises it
            self._errors.append(error)
        self._done[number].set()


class Sized(Protocol):
    """A chunk, or what stands for one in a simulation."""

    @property
    def length_of_all(self) -> int:
        """The number of its elements on all ranks together."""


Sizable = TypeVar("Sizable", bound=Sized)


def split_early(
    arrival: Sequence[Sizable], needed: Callable[[Sizable], float], share: float
) -> tuple[list[Sizable], list[Sizable]]:
    """The chunks that step during backward, in its order; the others, in the order of forward.

    Args:
        arrival: All chunks, in the order of backward.
        needed: When forward needs a chunk.
        share: The largest share of the elements of all chunks that step during backward.
    """
    order = list(reversed(arrival))  # the last bucket of backward has the first layers
    order.sort(key=needed)
    left = share * sum(chunk.length_of_all for chunk in order)
    early = set()
    for chunk in reversed(order):
        left -= chunk.length_of_all
        if left < 0:
            break
        early.add(chunk)
    return [c for c in arrival if c in early], [c for c in order if c not in early]
