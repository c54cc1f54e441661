"""``BucketsInFlight``: the buckets of one backward between autograd and the optimizer.

Whoever has a bucket of gradients hands it over and goes on. The hook's thread reduces it, and the
end of the backward waits for all of them::

    backward     bucket 0 ready   bucket 1 ready   end: waits, gives gradients back
    the hook       reduces 0 ------ reduces 1 -------|
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from q7x2._C import HookRunner


class BucketsInFlight:
    """Hands the buckets of a backward to a hook, and waits for them in the same order.

    All ranks hand over the same buckets in the same order.

    Args:
        runner: The hook at work.
    """

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner
        self._queue: list[tuple[Any, Callable[[], None]]] = []
        self._is_first = True

    def submit(
        self, index: int, parameters: list[int], buffer: torch.Tensor, landed: Callable[[], None]
    ) -> None:
        """Begin to replace a bucket by its mean over the ranks, in place.

        Args:
            index: The bucket's number, the same in each step.
            parameters: Numbers of the runner's parameters whose gradients the bucket holds.
            buffer: These gradients one after the other; contiguous, of one dimension.
            landed: Is called by :meth:`wait` when ``buffer`` holds the mean.
        """
        future = self._runner.reduce_bucket(index, parameters, buffer, self._is_first)
        self._is_first = False
        self._queue.append((future, landed))

    def wait(self) -> None:
        """Wait for the buckets so far; the step goes on.

        Raises:
            RuntimeError: A collective failed. The hook is as it was before the step.
        """
        try:
            for future, landed in self._queue:
                future.wait()
                landed()
        except BaseException:
            self.drop()
            raise
        self._queue.clear()

    def finish(self) -> None:
        """Wait for all buckets and end the hook's step; raises as :meth:`wait`."""
        self.wait()
        if not self._is_first:
            self._is_first = True
            self._runner.end_reductions()

    def drop(self) -> None:
        """The backward failed: let what is in flight end, and forget it.

        The next bucket begins another step, which undoes this one, on all ranks alike.
        """
        for future, _ in self._queue:
            with suppress(RuntimeError):  # it is not the first error
                future.wait()
        self._queue.clear()
        self._is_first = True
