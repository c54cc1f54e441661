"""Layers of tensor parallelism give up overlap that does not pay, and compute the same without it.

Times are given, as in test_overlap_trials.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import mesh_over
from pairs import each_value, nightly
from q7x2._core.overlap_trial import OverlapTrial
from torch import nn
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint
from values import assert_bits

BLOCK = 7  # steps of each way in a trial
ROWS, WIDTH, HIDDEN = 4, 8, 12  # which two and three ranks can share


def whole_numbers(shape: Any, seed: int) -> torch.Tensor:
    """All sums of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).float()


def models(backend: str, dim: int) -> tuple[nn.Module, nn.Module]:
    """With four pieces in each step, and one that tries."""
    plain = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    for seed, p in enumerate(plain.parameters()):
        p.data = whole_numbers(p.shape, seed)
    made = []
    for chunks in (4, None):
        shard = torch.distributed.tensor.Shard(dim)
        plan: dict[str, Any] = {
            "0": q7x2.tensor_parallel.ColwiseOverlap(input_layouts=shard, chunks=chunks),
            "2": q7x2.tensor_parallel.RowwiseOverlap(output_layouts=shard, chunks=chunks),
        }
        made.append(parallelize_module(copy.deepcopy(plain), mesh_over(backend), plan))
    return made[0], made[1]


def step(model: nn.Module, x: torch.Tensor, recomputes: bool = False) -> list[torch.Tensor]:
    """Output and gradients."""
    x = x.clone().requires_grad_()
    y = checkpoint(model, x, use_reentrant=False) if recomputes else model(x)
    y.backward(x.detach())
    assert x.grad is not None
    found = [y.detach(), x.grad]
    for p in model.parameters():
        assert p.grad is not None
        found.append(p.grad.full_tensor())
        p.grad = None
    return found


def take(trial: OverlapTrial, is_slow: bool) -> None:
    add = trial.add
    trial.add = lambda _: add(2.0 if trial.overlaps is is_slow else 1.0)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("backend", "dim", "recomputes"),
    each_value(["q7x2", "gloo"], [1, 0], [False, True]),
)
@pytest.mark.ranks(nightly(2, "the same with fewer ranks that must agree"), 3)
def test_slow_overlap_ends_on_all_ranks_and_results_keep_their_bits(
    backend: str, dim: int, recomputes: bool
) -> None:
    reference, model = models(backend, dim)
    shape = [2, 2, WIDTH]
    shape[dim] = ROWS
    for number in range(2 * BLOCK + 4):
        x = whole_numbers(shape, 100 * number + dist.get_rank())
        expected = step(reference, x)
        for mine, its in zip(step(model, x, recomputes), expected, strict=True):
            assert_bits(mine, its, number)
        if number == 0:
            take(model[0].overlap.trial, is_slow=True)
            take(model[2].overlap.trial, is_slow=False)
    assert reference[0].overlap.trial is None
    for layer, overlaps in ((model[0], False), (model[2], True)):
        (decision,) = layer.overlap.decisions
        assert decision.overlaps is layer.overlap.trial.overlaps is overlaps
        assert str(decision) in str(layer.overlap)
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, decision)
        assert everybody == [decision] * len(everybody)


@pytest.mark.ranks(2)
def test_forwards_alone_are_steps_too() -> None:
    _, model = models("q7x2", 1)
    x = whole_numbers((2, ROWS, WIDTH), dist.get_rank())
    with torch.no_grad():
        expected = model(x)
        take(model[0].overlap.trial, is_slow=True)
        for _ in range(2 * BLOCK + 1):
            assert_bits(model(x), expected)
    assert [decision.overlaps for decision in model[0].overlap.decisions] == [False]
