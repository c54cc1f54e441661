"""What sharded embeddings are compared with: one table and a torch optimizer in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import q7x2
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

ROWS, DIM, PADDING = 37, 5, 4

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.5),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
    "adam": functools.partial(torch.optim.SparseAdam, lr=0.05),
}


def make(optimizer: str = "adagrad", **options: Any) -> q7x2.embedding.ShardedEmbedding:
    return q7x2.embedding.ShardedEmbedding(
        ROWS, DIM, optimizer=OPTIMIZERS[optimizer], padding_idx=PADDING, **options
    )


def batch(step: int, rank: int) -> Tensor:
    """Skewed indices with duplicates and the padding; another length on each rank, 0 on some."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    count = int(torch.randint(0, 12, (), generator=generator)) if (step + rank) % 3 else 0
    drawn = torch.rand(count, generator=generator)
    return (drawn**3 * ROWS).long()


def weights(step: int, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """What a loss multiplies the rows of :func:`batch` by: their gradients."""
    generator = torch.Generator().manual_seed(7 + 1000 * step + rank)
    return torch.randn(count, DIM, generator=generator).to(dtype)


def train_step(
    embedding: q7x2.embedding.ShardedEmbedding, step: int, dtype: torch.dtype, group: Any = None
) -> Tensor:
    """One step on the batch of this rank of ``group``; returns what forward gave."""
    rank = dist.get_rank(group)
    indices = batch(step, rank)
    out = embedding(indices)
    (out * weights(step, rank, len(indices), dtype)).sum().backward()
    embedding.step()
    return out.detach()


def coalesced(index: Tensor, values: Tensor) -> Tensor:
    """A sparse gradient; sums of 16-bit floats are in float32."""
    wide = values.float() if values.dtype.itemsize == 2 else values
    shape = (ROWS, DIM)
    return torch.sparse_coo_tensor(index[None], wide, shape, check_invariants=False).coalesce()


class Reference:
    """``nn.Embedding(sparse=True)`` of one process, with the batches of ``ranks`` ranks."""

    def __init__(self, table: Tensor, optimizer: str, ranks: int) -> None:
        self.table = table.clone().requires_grad_()
        self.optimizer = OPTIMIZERS[optimizer]([self.table])
        self.ranks = ranks

    def gradient(self, step: int) -> Tensor:
        """The mean over the ranks: each rank's sum first, then those in the order of ranks."""
        dtype = self.table.dtype
        parts = []
        for rank in range(self.ranks):
            indices = batch(step, rank)
            out = F.embedding(indices, self.table, padding_idx=PADDING, sparse=True)
            loss = (out * weights(step, rank, len(indices), dtype)).sum()
            (sparse,) = torch.autograd.grad(loss, self.table)
            local = coalesced(sparse._indices()[0], sparse._values())
            parts.append((local.indices()[0], local.values().to(dtype)))
        total = coalesced(torch.cat([i for i, _ in parts]), torch.cat([v for _, v in parts]))
        mean = (total.values() / self.ranks).to(dtype)
        return torch.sparse_coo_tensor(total.indices(), mean, (ROWS, DIM), is_coalesced=True)

    def apply(self, gradient: Tensor) -> None:
        self.table.grad = gradient
        self.optimizer.step()
        self.table.grad = None

    def train_step(self, step: int) -> None:
        self.apply(self.gradient(step))

    def rows(self) -> Tensor:
        return self.table.detach()
