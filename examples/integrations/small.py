"""A small model, data that differ per rank, and the check that ends each example."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

STEPS = 8
BATCH = 4


def model() -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


def data(ranks: int) -> TensorDataset:
    """Samples for ``STEPS`` steps of ``BATCH`` samples per rank, no two of them alike."""
    generator = torch.Generator().manual_seed(1)
    count = STEPS * BATCH * ranks
    x = torch.randn(count, 32, generator=generator)
    return TensorDataset(x, torch.randint(8, (count,), generator=generator))


def check(
    title: str,
    trained: nn.Module,
    group: dist.ProcessGroup | None = None,
    untrained: nn.Module | None = None,
) -> None:
    """Print one line on rank 0, or fail if the ranks' parameters differ or are untrained.

    ``untrained`` is what ``trained`` was at the beginning: ``model()``, if nothing is given.
    """
    flat = torch.cat([p.detach().flatten() for p in trained.parameters()])
    fresh = torch.cat([p.detach().flatten() for p in (untrained or model()).parameters()])
    assert not torch.equal(flat, fresh), "the parameters did not change"
    ranks = dist.get_world_size(group)
    everybody = [torch.empty_like(flat) for _ in range(ranks)]
    dist.all_gather(everybody, flat, group=group)
    for rank, theirs in enumerate(everybody):
        assert torch.equal(flat, theirs), f"rank {rank} has other parameters"
    backend = dist.group.WORLD if group is None else group
    name = backend._get_backend(torch.device("cpu")).name()
    if dist.get_rank() == 0 if group is None else group.rank() == 0:
        print(f"{title}: {ranks} ranks on {name} have equal parameters", flush=True)
