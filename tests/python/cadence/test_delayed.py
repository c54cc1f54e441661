"""Updates that come later: hand-written references, what is left out, state, errors."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import batch, net
from torch import nn
from values import assert_bits, assert_close, assert_same_on_all_ranks, flat


def made(**options: Any) -> tuple[nn.Module, q7x2.cadence.PipelinedSGD]:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, q7x2.cadence.PipelinedSGD(model, sgd, **options)


def backward(model: nn.Module, step: int, rank: int) -> None:
    x, y = batch(rank, step)
    nn.functional.mse_loss(model(x), y).backward()


def train(model: nn.Module, updates: q7x2.cadence.PipelinedSGD, steps: range) -> None:
    for step in steps:
        backward(model, step, dist.get_rank())
        updates.step()


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.ranks(2)
def test_means_are_applied_so_many_steps_later(delay: int, world_size: int) -> None:
    model, updates = made(delay=delay)
    with updates:
        train(model, updates, range(6))
        assert updates.stats.updates == 6 - delay
    assert updates.stats.updates == 6
    assert_same_on_all_ranks([flat(model)])
    other = net()
    sgd = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    means: list[list[torch.Tensor]] = []
    for step in range(6 + delay):
        if step < 6:
            sgd.zero_grad()
            for rank in range(world_size):
                backward(other, step, rank)
            means.append([p.grad / world_size for p in other.parameters()])
        if step >= delay:
            for p, mean in zip(other.parameters(), means[step - delay], strict=True):
                p.grad = mean.clone()
            sgd.step()
    assert_close(flat(model), flat(other), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.ranks(2)
def test_what_is_left_out_is_kept_and_nothing_is_lost(delay: int, world_size: int) -> None:
    model = nn.ModuleDict({name: nn.Linear(8, 8) for name in "abcd"})
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    updates = q7x2.cadence.PipelinedSGD(model, sgd, delay=delay, share=0.3, longest_skip=5)
    before = flat(model)
    total = torch.zeros_like(before)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(20):
        for name, p in model.named_parameters():
            scale = {"a": 1.0, "b": 1.0, "c": 1e-3, "d": 0.0}[name[0]]
            p.grad = scale * torch.randn(p.shape, generator=generator)
        total += torch.cat([p.grad.flatten() for p in model.parameters()])
        updates.step()
    updates.flush()
    assert_same_on_all_ranks([flat(model)])
    left = torch.cat([each.flatten() for each in updates.residuals.values()])
    applied = total - left
    dist.all_reduce(applied)
    assert_close(flat(model), before - 0.5 * applied / world_size, rtol=1e-4, atol=1e-5)
    stats = updates.stats
    assert stats.longest_skip == 5  # of the layer that never changes
    assert 0.3 * 20 * before.numel() <= stats.sent_elements < 0.7 * 20 * before.numel()


@pytest.mark.parametrize("options", [{}, {"delay": 2, "share": 0.4}], ids=["delay", "selective"])
@pytest.mark.ranks(2)
def test_training_goes_on_from_a_state_with_the_same_bits(options: dict[str, Any]) -> None:
    model, updates = made(**options)
    train(model, updates, range(5))
    saved = copy.deepcopy(
        (model.state_dict(), updates.optimizer.state_dict(), updates.state_dict())
    )
    train(model, updates, range(5, 10))
    again, resumed = made(**options)
    again.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    train(again, resumed, range(5, 10))
    for each in (updates, resumed):
        each.flush()
    assert_bits(flat(again), flat(model))
    for name, value in updates.residuals.items():
        assert_bits(resumed.residuals[name], value, name)


@pytest.mark.ranks(2)
def test_a_mean_that_is_not_finite_raises_on_all_ranks_and_is_dropped() -> None:
    model, updates = made(delay=1)
    before = flat(model)
    backward(model, 0, dist.get_rank())
    if dist.get_rank() == 1:
        model.last.bias.grad[0] = math.inf
    updates.step()
    backward(model, 1, dist.get_rank())
    with pytest.raises(FloatingPointError, match="the mean gradient has Inf or NaN"):
        updates.step()
    assert_bits(flat(model), before)
    train(model, updates, range(2, 4))
    assert_same_on_all_ranks([flat(model)])


@pytest.mark.ranks(2)
def test_mistakes_raise_when_it_is_made() -> None:
    for error, options in (
        ("delay must not be negative", {"delay": -1}),
        ("share must be more than 0 and at most 1", {"share": 0}),
        ("longest_skip must be at least 1", {"longest_skip": 0}),
        ("the same PipelinedSGD, but rank 0", {"delay": dist.get_rank()}),
    ):
        with pytest.raises(ValueError, match=error):
            made(**options)
    with pytest.raises(TypeError, match="optimizer must be of type Optimizer"):
        q7x2.cadence.PipelinedSGD(net(), None)  # type: ignore[arg-type]
    _, updates = made()
    _, other = made(share=0.5)
    with pytest.raises(ValueError, match="parameters with residuals, expected 2 ranks"):
        updates.load_state_dict(other.state_dict())
