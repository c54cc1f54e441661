"""Hooks and gradients with zeros: ``nn.Embedding(sparse=True)`` under DDP, and ``BlockSparse``."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close, assert_same_on_all_ranks

ROWS, DIM = 3_000, 256  # a row is a block


class Model(nn.Module):
    """Two tables, one with sparse gradients, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(ROWS, DIM, sparse=True)
        self.mostly_zero = nn.Embedding(ROWS, DIM)
        self.dense = nn.Linear(DIM, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dense(self.sparse(ids) + self.mostly_zero(ids)).tanh().mean(1)


def _model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model()


def _ids(step: int, rank: int) -> torch.Tensor:
    """Small ids are in most batches, some of them twice; no ids in some."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    count = 40 if (step + rank) % 4 else 0
    return (torch.rand(count, generator=generator) ** 3 * ROWS).long()


def _train(ddp: DDP, steps: int) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        ids = _ids(step, dist.get_rank())
        ddp(ids).sum().backward()
        optimizer.step()


def _trained(hook: Any = None, group: Any = None) -> dict[str, torch.Tensor]:
    ddp = DDP(_model(), process_group=group, bucket_cap_mb=1)
    if hook is not None:
        q7x2.attach(ddp, hook)
    _train(ddp, 6)
    for name, parameter in ddp.named_parameters():
        assert_same_on_all_ranks([parameter.detach()], name)
    return {name: p.detach() for name, p in ddp.module.named_parameters()}


@pytest.mark.parametrize("hook", [q7x2.Allreduce(), q7x2.BlockSparse()])
@pytest.mark.ranks(3)
def test_trainings_are_those_of_gloo(hook: Any) -> None:
    expected = _trained(group=dist.new_group(backend="gloo"))
    for name, weight in _trained(hook).items():
        # Gloo adds dense gradients in another order, and DDP divides where hooks multiply.
        assert_close(weight, expected[name], name)


@pytest.mark.ranks(2)
def test_sparse_gradients_pass_through_hooks_with_codecs() -> None:
    expected = _trained()
    weights = _trained(q7x2.Quantize("bf16", full_precision=["dense.*"]))
    assert not torch.equal(weights["mostly_zero.weight"], expected["mostly_zero.weight"])
    touched = (expected["sparse.weight"] != _model().sparse.weight).any(1)
    assert torch.equal(touched, (weights["sparse.weight"] != _model().sparse.weight).any(1))


@pytest.mark.ranks(2)
def test_block_sparse_has_the_bits_of_ddp_without_a_hook() -> None:
    expected = _trained()
    for name, weight in _trained(q7x2.BlockSparse()).items():
        assert_bits(weight, expected[name], name)


@pytest.mark.ranks(2)
def test_the_way_of_each_gradient_follows_its_density() -> None:
    ddp = DDP(_model(), bucket_cap_mb=100)  # both dense gradients lie in one bucket
    q7x2.attach(ddp, q7x2.BlockSparse())
    _train(ddp, 3)
    torch.distributed.barrier()
    before = max(entry["record_id"] for entry in q7x2.flight_recorder())
    _train(ddp, 1)
    torch.distributed.barrier()
    entries = [entry for entry in q7x2.flight_recorder() if entry["record_id"] > before]
    ways = Counter(
        (entry["q7x2"]["plan"] if entry["q7x2"]["plan"] in ("blocks", "sparse_rows") else "dense")
        for entry in entries
        if "all_reduce" in entry["profiling_name"] and not entry["q7x2"].get("internal")
    )
    assert ways["sparse_rows"] == 1
    assert ways["blocks"] == 1  # of the table with zeros
    assert ways["dense"] >= 1  # of the linear layer


@pytest.mark.ranks(1)
def test_block_sparse_checks_its_option() -> None:
    for value in (0, 1.5, "much"):
        with pytest.raises(ValueError, match="dense_above must be more than 0 and at most 1"):
            q7x2.BlockSparse(dense_above=value)


@pytest.mark.ranks(1)
def test_block_sparse_needs_a_group_of_q7x2() -> None:
    ddp = DDP(copy.deepcopy(_model()), process_group=dist.new_group(backend="gloo"))
    with pytest.raises(ValueError, match="BlockSparse needs a process group of q7x2"):
        q7x2.attach(ddp, q7x2.BlockSparse())
