"""From the gradients of a backward to the rows of their owners: sum, push, wait, update.

    add()    a backward: the sum per row of this rank's batch
    push()   the sum of all backwards of the step is sent to the owners, in the background
    step()   the owners apply the push of ``staleness`` steps before

A push is applied in exactly that step on every owner, not when it happens to arrive. So a training
with a staleness repeats bit by bit as well.
"""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from q7x2.embedding.exchange import Exchange, Push, sum_rows
from q7x2.embedding.shard import Shard


class Updates:
    """The gradients of one embedding that are not applied yet.

    Args:
        padding: The position whose gradients are dropped; -1 for none.
        staleness: How many steps after its own a push is applied.
        average: Whether sums of gradients are divided by the number of ranks.
    """

    def __init__(
        self, shard: Shard, exchange: Exchange, padding: int, staleness: int, average: bool
    ) -> None:
        self.staleness = staleness
        self.applied = 0
        self.largest_staleness = 0
        self.pushed_rows = 0
        self.wait_seconds = 0.0
        self._shard = shard
        self._exchange = exchange
        self._padding = padding
        self._average = average
        self._steps = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything that is not applied."""
        self.in_flight: deque[Push] = deque()
        self.skip()

    def skip(self) -> None:
        """Drop the gradients of the step that has not ended."""
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._pushed: Push | None = None

    def check_settled(self) -> None:
        """Raises RuntimeError if gradients are on their way, which the rows lack."""
        if self.in_flight:
            raise RuntimeError(f"{len(self.in_flight)} pushes are in flight: call flush() first")
        if self._pushed is not None:
            raise RuntimeError("a step has been pushed and not applied: call step() first")

    def add(self, positions: Tensor, inverse: Tensor, gradient: Tensor) -> None:
        """Take the gradient of one lookup, of shape (n, dim).

        Args:
            positions: The distinct positions of the lookup.
            inverse: For each row of ``gradient``, its index in ``positions``; shape (n,).
        """
        if self._pushed is not None:
            raise RuntimeError("backward of a ShardedEmbedding between push() and step()")
        distinct, sums = sum_rows(inverse, gradient, len(positions))
        touched = positions[distinct]
        if self._padding >= 0:
            keep = touched != self._padding
            touched, sums = touched[keep], sums[keep]
        self._sums.append((touched, sums))

    def push(self) -> None:
        """Start to send the gradients of this step; a collective call."""
        if self._shard.optimizer is None:
            raise RuntimeError("this ShardedEmbedding has no optimizer: its rows are not updated")
        if self._pushed is not None:
            raise RuntimeError("push() was called twice in one step")
        positions, sums = self._merged()
        counts = self._exchange.counts(positions)
        values = sums.to(self._shard.rows.dtype)
        self._pushed = self._exchange.push(counts, positions, values, self._steps)
        self._sums = []
        self.pushed_rows += len(positions)

    def _merged(self) -> tuple[Tensor, Tensor]:
        if len(self._sums) == 1:
            return self._sums[0]
        rows = self._shard.rows
        positions = torch.cat([rows.new_empty(0, dtype=torch.int64), *(p for p, _ in self._sums)])
        values = torch.cat([rows.new_empty(0, rows.shape[1]), *(v for _, v in self._sums)])
        return sum_rows(positions, values, self._exchange.map.rows)

    def step(self) -> None:
        """End the step: push its gradients, and apply those whose time is up."""
        if self._pushed is None:
            self.push()
        assert self._pushed is not None
        self.in_flight.append(self._pushed)
        self._pushed = None
        while len(self.in_flight) > self.staleness:
            self._apply_oldest()
        self._steps += 1

    def flush(self) -> None:
        while self.in_flight:
            self._apply_oldest()

    def _apply_oldest(self) -> None:
        push = self.in_flight[0]
        self._shard.update(*self._reduced(push))
        self.in_flight.popleft()
        self.applied += 1
        self.largest_staleness = max(self.largest_staleness, self._steps - push.step)

    def _reduced(self, push: Push) -> tuple[Tensor, Tensor]:
        """This owner's touched rows and their gradients, as the optimizer gets them."""
        if push.reduced is None:
            self.wait_seconds += push.wait()
            index, sums = push.sums(len(self._shard.rows))
            if self._average:
                sums = sums / self._exchange.map.ranks
            push.reduced = index, sums.to(self._shard.rows.dtype)
        return push.reduced

    def gradient(self) -> Tensor:
        """This step's gradient of this owner's touched rows, of shape (touched rows, dim)."""
        if self.staleness > 0:
            raise ValueError("the gradient of this step is not awaited: it needs staleness=0")
        if self._pushed is None:
            self.push()
        assert self._pushed is not None
        return self._reduced(self._pushed)[1]

    def norm(self, norm_type: float) -> Tensor:
        """The norm of this step's gradient over all owners; a collective call."""
        norm = torch.linalg.vector_norm(self.gradient().float(), norm_type)
        norms = [torch.empty_like(norm) for _ in range(self._exchange.map.ranks)]
        dist.all_gather(norms, norm, group=self._exchange.group)
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        return total
