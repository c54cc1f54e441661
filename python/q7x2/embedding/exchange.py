"""The messages of a sharded embedding: who asks whom for rows, rows to the asker, gradients back.

    counts   all to all: how many rows each rank wants of each owner, and whether its batch is bad
    pull     all to all: indices to the owners, then rows back
    push     all to all: indices and gradients to the owners, both at once, in the background

Bytes per rank and direction for u unique rows of the batch: 24 n for the counts, and u times 4 for
the indices and u times the bytes of a row, less the share that the rank itself owns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from q7x2.embedding.row_map import RowMap

# What can be wrong with a batch, as it travels with the counts.
BAD_INDEX = 1
BAD_TENSOR = 2


def sum_rows(index: Tensor, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The distinct numbers in ``index``, ascending, and the sum of ``values`` for each of them.

    Sums are added in the order of ``values``, as torch's optimizers add the rows of a sparse
    gradient. 16-bit floats are added in float32, and the sums stay float32.

    Args:
        index: int64, of shape (n,), less than ``size``.
        values: of shape (n, dim).
        size: the number of rows that ``index`` can name.
    """
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    shape = (size, values.shape[1])
    total = torch.sparse_coo_tensor(index[None], values, shape, check_invariants=False).coalesce()
    return total.indices()[0], total.values()


@dataclass(frozen=True)
class Counts:
    """How many rows this rank wants of each owner, and how many each rank wants of this one."""

    mine: list[int]
    theirs: list[int]

    def check(self, rows: Tensor, size: int) -> None:
        """Raise IndexError, with the rank, if one has sent a number that is no row.

        Args:
            rows: What the ranks have sent, in their order: rows of this owner, from its first.
            size: How many rows this owner has.
        """
        if len(rows) == 0:
            return
        low, high = (int(bound) for bound in rows.aminmax())
        if low >= 0 and high < size:
            return
        for rank, sent in enumerate(torch.split(rows, self.theirs)):
            for row in sent[(sent < 0) | (sent >= size)].tolist():
                raise IndexError(
                    f"rank {rank} of the group sent the row {row} of another rank of a "
                    f"ShardedEmbedding, which has rows 0 to {size - 1}"
                )


class Push:
    """Gradients on their way to this owner; made by :meth:`Exchange.push`."""

    def __init__(
        self, works: Sequence[Work], counts: Counts, rows: Tensor, values: Tensor, step: int
    ) -> None:
        self.step = step
        self.reduced: tuple[Tensor, Tensor] | None = None  # what the optimizer gets of it
        self._works = list(works)
        self._counts = counts
        self._rows = rows
        self._values = values

    def wait(self) -> float:
        """Wait until everything has arrived; return the seconds that it took."""
        begin = time.perf_counter()
        while self._works:
            self._works[0].wait()
            del self._works[0]
        return time.perf_counter() - begin

    def sums(self, size: int) -> tuple[Tensor, Tensor]:
        """The touched rows of this owner, counted from its first, and their gradients.

        Gradients are added in the order of the ranks. :meth:`wait` comes first.

        Raises:
            IndexError: A rank sent a number that is no row of this owner.
        """
        self._counts.check(self._rows, size)
        return sum_rows(self._rows.to(torch.int64), self._values, size)


class Exchange:
    """The collectives of one embedding in its group."""

    def __init__(self, row_map: RowMap, group: ProcessGroup, device: torch.device) -> None:
        self.map = row_map
        self.group = group
        self.device = device
        self.sent_bytes = 0  # to other ranks

    def counts(self, positions: Tensor, problem: tuple[int, int] = (0, 0)) -> Counts:
        """Tell each owner how many rows this rank wants of it.

        Args:
            positions: int64, ascending, of shape (n,).
            problem: What is wrong with this rank's batch: its kind, and the bad index.

        Raises:
            IndexError: A rank, which may be another one, was given an index that is no row.
            TypeError: A rank was given something else than a tensor of indices.
        """
        mine = self.map.counts(positions)
        sent = torch.zeros(self.map.ranks, 3, dtype=torch.int64, device=self.device)
        sent[:, 0] = mine
        sent[:, 1], sent[:, 2] = problem
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=self.group)
        self.sent_bytes += sent[1:].nbytes
        theirs = got.tolist()
        for rank, (_, kind, value) in enumerate(theirs):
            if kind == BAD_INDEX:
                raise IndexError(
                    f"rank {rank} of the group gave ShardedEmbedding the index {value}; it has "
                    f"rows 0 to {self.map.rows - 1}"
                )
            if kind == BAD_TENSOR:
                raise TypeError(
                    f"rank {rank} of the group gave ShardedEmbedding something else than a tensor "
                    f"of int32 or int64 on {self.device}"
                )
        return Counts(mine.tolist(), [count for count, _, _ in theirs])

    def pull(self, counts: Counts, positions: Tensor, rows: Tensor) -> Tensor:
        """The rows at ``positions``, of shape (n, dim); ``rows`` are those of this owner."""
        wanted = self._indices(positions, counts)
        dist.all_to_all_single(
            wanted, self._local(positions), counts.theirs, counts.mine, group=self.group
        )
        counts.check(wanted, len(rows))
        served = rows.index_select(0, wanted)
        pulled = rows.new_empty(len(positions), rows.shape[1])
        self._count(counts.mine, wanted.itemsize)
        self._count(counts.theirs, rows.shape[1] * rows.itemsize)
        dist.all_to_all_single(pulled, served, counts.mine, counts.theirs, group=self.group)
        return pulled

    def push(self, counts: Counts, positions: Tensor, values: Tensor, step: int) -> Push:
        """Start to send the gradients of ``positions``, of shape (n, dim), to their owners."""
        rows = self._indices(positions, counts)
        got = values.new_empty(len(rows), values.shape[1])
        self._count(counts.mine, rows.itemsize + values.shape[1] * values.itemsize)
        splits = (counts.theirs, counts.mine)
        works = [
            dist.all_to_all_single(out, data, *splits, group=self.group, async_op=True)
            for out, data in ((rows, self._local(positions)), (got, values.contiguous()))
        ]
        return Push([work for work in works if work is not None], counts, rows, got, step)

    def _count(self, to_ranks: list[int], item_bytes: int) -> None:
        self.sent_bytes += (sum(to_ranks) - to_ranks[self.map.rank]) * item_bytes

    def _local(self, positions: Tensor) -> Tensor:
        """Positions within their owners' ranges, as they travel."""
        return positions.remainder(self.map.per_rank).to(torch.int32)

    def _indices(self, positions: Tensor, counts: Counts) -> Tensor:
        return torch.empty(sum(counts.theirs), dtype=torch.int32, device=positions.device)
