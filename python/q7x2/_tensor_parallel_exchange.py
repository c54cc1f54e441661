"""An all-gather whose pieces are used as they arrive, and a reduce-scatter of parts made in turn.

Ranks send straight to each other, as in CommFuse (arXiv 2604.24013). Of 4 ranks, in time:

    Gather, rank 0      use own | use 1, 2, 3: first pieces | second pieces | ...
            network     first pieces of 1, 2, 3 | second pieces | ...
    Scatter, rank 0     make part of 3 | part of 2 | part of 1 | own part | add up
            network                    | to 3      | to 2      | to 1

Each rank sends (n - 1) shards, as a direct all-gather and reduce-scatter do. While a rank uses its
own shard, or makes its own part, the network works and nothing waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

_TAG = 72  # of all messages; between two ranks they arrive in the order in which they are sent


def pieces(rows: int, chunks: int) -> list[tuple[int, int]]:
    """Begin and length of each of at most ``chunks`` pieces of ``rows``; none is empty."""
    count = min(rows, chunks)
    ends = [rows * index // count for index in range(count + 1)] if count else []
    return [(begin, end - begin) for begin, end in pairwise(ends)]


class Gather:
    """The shards of all ranks along ``dim``. Making it starts all messages.

    Iterate over it once: it yields begin and length of rows of :attr:`full` that are there, this
    rank's own first. Then call :meth:`finish`.

    Args:
        shard: Of equal shape on all ranks. It must not change before :meth:`finish` returns.
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
        self._arrivals: list[tuple[Work, Tensor, int, int]] = []
        self._sends: list[Work] = []
        parts = pieces(self._rows, chunks)
        for begin, length in parts:
            for step in range(1, size):
                source = (self._rank + step) % size
                first = source * self._rows + begin
                place = self.full.narrow(dim, first, length)
                target = place if place.is_contiguous() else place.new_empty(place.shape)
                work = dist.irecv(target, group=group, tag=_TAG, group_src=source)
                self._arrivals.append((_started(work), target, first, length))
        for begin, length in parts:
            piece = shard.narrow(dim, begin, length).contiguous()
            for step in range(1, size):
                destination = (self._rank - step) % size
                work = dist.isend(piece, group=group, tag=_TAG, group_dst=destination)
                self._sends.append(_started(work))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        own = self._rank * self._rows
        self.full.narrow(self._dim, own, self._rows).copy_(self._shard)
        yield own, self._rows
        for work, target, first, length in self._arrivals:
            self._wait(work)
            place = self.full.narrow(self._dim, first, length)
            if not place.is_contiguous():
                place.copy_(target)
            yield first, length

    def finish(self) -> None:
        """Wait until the other ranks have this rank's shard."""
        for work in self._sends:
            self._wait(work)

    def _wait(self, work: Work) -> None:
        begin = time.perf_counter()
        work.wait()
        self.waited += time.perf_counter() - begin


class Scatter:
    """Sums over the ranks; each rank gets that of its own shard along ``dim``.

    Put every part that :meth:`order` yields, then call :meth:`finish`. Sums are made in rank order,
    those of 16-bit floats in float32, and rounded once. So they do not depend on ``chunks``.

    Args:
        shape: Of a shard, equal on all ranks.
        dim: The dimension of the shards, at least 0.
        chunks: Pieces that each shard is made and sent in, at most.
        like: A tensor with the dtype and the device of the parts.
        group: The ranks, in the order of their shards.
    """

    def __init__(
        self, shape: tuple[int, ...], dim: int, chunks: int, like: Tensor, group: ProcessGroup
    ) -> None:
        self._dim, self._group, self._rank = dim, group, group.rank()
        self._result = like.new_empty(shape)
        self._pieces = pieces(shape[dim], chunks)
        self.waited = 0.0
        """Seconds that this rank has waited for messages."""
        self._parts: dict[tuple[int, int], Tensor] = {}
        self._receipts: dict[tuple[int, int], Work] = {}
        self._sends: list[tuple[Work, Tensor]] = []
        size = group.size()
        for step in range(1, size):
            source = (self._rank + step) % size
            for begin, length in self._pieces:
                place = self._result.narrow(dim, begin, length)
                part = place.new_empty(place.shape)
                work = dist.irecv(part, group=group, tag=_TAG, group_src=source)
                self._parts[source, begin] = part
                self._receipts[source, begin] = _started(work)

    def order(self) -> Iterator[tuple[int, int, int]]:
        """Rank, begin and length (of its shard) of each part: the farthest rank first, own last."""
        size = self._group.size()
        for step in range(size - 1, -1, -1):
            for begin, length in self._pieces:
                yield (self._rank + step) % size, begin, length

    def put(self, rank: int, begin: int, part: Tensor) -> None:
        """Send a part of this rank's addends. It must not change any more."""
        part = part.contiguous()
        if rank == self._rank:
            self._parts[rank, begin] = part
            return
        work = dist.isend(part, group=self._group, tag=_TAG, group_dst=rank)
        self._sends.append((_started(work), part))

    def finish(self, bias: Tensor | None = None) -> Tensor:
        """Wait for the other ranks, and return the sum, to which ``bias`` is added."""
        wide = self._result.dtype
        if wide in (torch.bfloat16, torch.float16):
            wide = torch.float32
        for begin, length in self._pieces:
            total: Tensor | None = None
            for rank in range(self._group.size()):
                if (rank, begin) in self._receipts:
                    self._wait(self._receipts[rank, begin])
                part = self._parts.pop((rank, begin))
                total = part.to(wide) if total is None else total.add_(part)
            assert total is not None
            if bias is not None:
                total.add_(bias)
            self._result.narrow(self._dim, begin, length).copy_(total)
        for work, _ in self._sends:
            self._wait(work)
        return self._result

    def _wait(self, work: Work) -> None:
        begin = time.perf_counter()
        work.wait()
        self.waited += time.perf_counter() - begin


def _started(work: Work | None) -> Work:
    """Of a call that this rank takes part in; torch returns None only on ranks outside a group."""
    assert work is not None
    return work
