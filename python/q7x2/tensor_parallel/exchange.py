"""An all-gather whose pieces are used as they arrive, and a reduce-scatter of pieces made in turn.

Each piece is one collective of the group, so the Planner decides how it travels: on some networks
round a ring, between hosts of several ranks once per host. For 4 ranks, in time:

    Gather, rank 0      use own | use first pieces of 1, 2, 3 | second pieces | ...
            network     all-gather of the first pieces | second pieces | ...
    Scatter, rank 0     make first pieces for all | second pieces | ...
            network                               | reduce-scatter of the first pieces | second ...

The pieces of all ranks are used together, because one product of many rows is faster than several
of few rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.collective_queue import CollectiveQueue

_AT_ONCE = 2  # with more, messages of several pieces meet at one rank, and its switch drops some


def pieces(rows: int, chunks: int) -> list[tuple[int, int]]:
    """Begin and length of each of at most ``chunks`` pieces of ``rows``; none is empty."""
    count = min(rows, chunks)
    ends = [rows * index // count for index in range(count + 1)] if count else []
    return [(begin, end - begin) for begin, end in pairwise(ends)]


class Gather:
    """The shards of all ranks along ``dim``. Making it starts all messages.

    Iterate over it once: it yields rows that are there, this rank's own first.

    Args:
        shard: It has the same shape on all ranks.
        dim: The dimension of the shards, at least 0.
        chunks: Pieces that each shard is sent in, at most.
        group: The ranks, in the order of their shards.
    """

    def __init__(self, shard: Tensor, dim: int, chunks: int, group: ProcessGroup) -> None:
        self._shard, self._dim, self._rank = shard, dim, group.rank()
        self._rows = shard.shape[dim]
        size = group.size()
        shape = list(shard.shape)
        shape[dim] *= size
        self.full = shard.new_empty(shape)
        """The shards of all ranks, one after the other."""
        self.waited = 0.0
        """Seconds that this rank has waited for messages."""
        self._others = [rank for rank in range(size) if rank != self._rank]
        self._queue = CollectiveQueue(_AT_ONCE)
        self._arrivals: list[tuple[Tensor, int]] = []
        for begin, length in pieces(self._rows, chunks) if self._others else []:
            piece = shard.narrow(dim, begin, length).contiguous()
            arrived = piece.new_empty((size, *piece.shape))
            self._queue.add(partial(_all_gather, arrived, piece, group))
            self._arrivals.append((arrived, begin))

    def __iter__(self) -> Iterator[tuple[Tensor, list[int]]]:
        """Rows [parts, ...], and where each part begins in :attr:`full`, which has them too."""
        own = self._rank * self._rows
        self.full.narrow(self._dim, own, self._rows).copy_(self._shard)
        yield self._shard.unsqueeze(0), [own]
        for number, (arrived, begin) in enumerate(self._arrivals):
            begun = time.perf_counter()
            self._queue.wait(number)
            self.waited += time.perf_counter() - begun
            parts = torch.cat((arrived[: self._rank], arrived[self._rank + 1 :]))
            begins = [rank * self._rows + begin for rank in self._others]
            self.place(self.full, parts, begins)
            yield parts, begins

    def wait(self) -> Tensor:
        """Instead of the iteration: return :attr:`full` when all rows are there."""
        if not self._others:
            self.full.copy_(self._shard)
        for number, (arrived, begin) in enumerate(self._arrivals):
            begun = time.perf_counter()
            self._queue.wait(number)
            self.waited += time.perf_counter() - begun
            begins = [rank * self._rows + begin for rank in range(len(arrived))]
            self.place(self.full, arrived, begins)
        return self.full

    def place(self, whole: Tensor, parts: Tensor, begins: list[int]) -> None:
        """Copy parts, [parts, ...], to where they begin in ``whole``."""
        for part, begin in zip(parts, begins, strict=True):
            whole.narrow(self._dim, begin, part.shape[self._dim]).copy_(part)


class Scatter:
    """Sums over the ranks; each rank gets that of its own shard along ``dim``.

    Put what :meth:`order` asks for, then call :meth:`finish`.

    Args:
        shape: That of a shard, equal on all ranks.
        dim: The dimension of the shards, at least 0.
        chunks: Pieces that each shard is made and sent in, at most.
        group: The ranks, in the order of their shards.
    """

    def __init__(self, shape: tuple[int, ...], dim: int, chunks: int, group: ProcessGroup) -> None:
        self._shape, self._dim, self._group = shape, dim, group
        self._queue = CollectiveQueue(_AT_ONCE)
        self._sums: list[Tensor] = []
        self._pieces = pieces(shape[dim], chunks)
        self.waited = 0.0
        """Seconds that this rank has waited for messages."""

    def order(self) -> Iterator[tuple[list[int], int]]:
        """For each piece: where it begins in the rows of all ranks, by rank, and its length."""
        rows = self._shape[self._dim]
        for begin, length in self._pieces:
            yield [rank * rows + begin for rank in range(self._group.size())], length

    def put(self, parts: Tensor) -> None:
        """Send this rank's addends of the next piece, [ranks, ...]; they must not change."""
        parts = parts.contiguous()
        total = torch.empty_like(parts[0])
        self._queue.add(partial(_reduce_scatter, total, parts, self._group))
        self._sums.append(total)

    def finish(self, like: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wait for the other ranks, and return the sum, to which ``bias`` is added.

        Args:
            like: A tensor with the dtype and the device of the parts.
            bias: For the last dimension.
        """
        result = like.new_empty(self._shape)
        for number, (begin, length) in enumerate(self._pieces):
            begun = time.perf_counter()
            self._queue.wait(number)
            self.waited += time.perf_counter() - begun
            place = result.narrow(self._dim, begin, length)
            total = self._sums[number]
            place.copy_(total if bias is None else total + bias)
        return result


def _all_gather(arrived: Tensor, piece: Tensor, group: ProcessGroup) -> Any:
    return dist.all_gather_into_tensor(arrived.flatten(0, 1), piece, group=group, async_op=True)


def _reduce_scatter(total: Tensor, parts: Tensor, group: ProcessGroup) -> Any:
    return dist.reduce_scatter_tensor(total, parts.flatten(0, 1), group=group, async_op=True)
