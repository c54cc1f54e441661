"""Hooks on plain modules: buckets, ranks without gradients or inputs, failures."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import HOOKS, backward, batch, net, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close
from whole_models import (
    STEADY,
    assert_same,
    everywhere,
    gradients,
    weights,
)


@pytest.mark.parametrize("name", sorted(HOOKS))
@pytest.mark.ranks(2, env=STEADY)
def test_buckets_of_a_plain_module_are_those_of_ddp(name: str) -> None:
    expected = DDP(net(), bucket_cap_mb=0.01)
    q7x2.attach(expected, HOOKS[name])
    model = net()
    hook = q7x2.attach(model, HOOKS[name], group=dist.group.WORLD, bucket_cap_mb=0.01)
    for step in range(4):
        for each in (expected, model):
            each.zero_grad()
            backward(each, step)
        assert_same(gradients(model), gradients(expected), step)
    assert hook.stats.buckets > 10, "buckets are small after the first step"


@pytest.mark.ranks(2, env=STEADY)
def test_unused_parameters_of_a_plain_module() -> None:
    """One that no rank uses keeps its gradient; one that some rank uses gets the mean."""
    model = net()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    reference = net()
    for step in range(3):  # before and after buckets were rebuilt
        model.zero_grad()
        backward(model, step, extra=False)
        assert model.extra.weight.grad is None
        assert model.last.weight.grad is not None
        model.zero_grad()
        backward(model, step, extra=dist.get_rank() == 1)
        reference.zero_grad()
        backward(reference, step, rank=1)
        assert_close(
            model.extra.weight.grad, reference.extra.weight.grad / 2, step, rtol=1e-6, atol=1e-7
        )


@pytest.mark.ranks(2, env=STEADY)
def test_a_rank_whose_loss_uses_no_parameter() -> None:
    model = net()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    x = batch(0, 0)[0].requires_grad_()
    out = model(x)
    (out * (0.0 if dist.get_rank() else 1.0)).sum().backward()
    norms = [g.norm() for g in gradients(model).values()]
    assert sum(norms) > 0


@pytest.mark.ranks(2, env=STEADY)
def test_uneven_inputs_of_a_plain_module() -> None:
    """As with DDP's join: ranks without inputs count as zeros, and all end with one model."""
    ends = []
    for kind in ("ddp", "plain"):
        model: Any = DDP(net()) if kind == "ddp" else net()
        options = {} if kind == "ddp" else {"group": dist.group.WORLD}
        hook = q7x2.attach(model, q7x2.Quantize("int8"), **options)
        optimizer = sgd(model)
        with model.join() if kind == "ddp" else hook.join():
            for step in range(2 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
        assert hook.steps == 4
        ends.append(weights(model))
    for one, other in zip(*ends, strict=True):
        assert_bits(one, other)


@pytest.mark.ranks(2, env=STEADY)
def test_a_gradient_that_comes_too_late_is_an_error() -> None:
    """A backward within a backward: the bucket of the tied weight fills up before its last use."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            from torch.utils.checkpoint import checkpoint

            x = x.requires_grad_()
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return x[:, :8]

    model = Twice()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        backward(model, 0)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="use_reentrant=False"):  # again: it was reset
        backward(model, 0)


@pytest.mark.ranks(2, env=STEADY)
def test_all_ranks_begin_as_the_first() -> None:
    model = net(seed=dist.get_rank())
    model.register_buffer("count", torch.tensor(dist.get_rank()))
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    for p, q in zip(model.parameters(), net(seed=0).parameters(), strict=True):
        assert_bits(p, q)
    assert model.count == 0


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.ranks(2, env=STEADY)
def test_a_failed_backward_of_a_plain_module_leaves_nothing_behind(steps: int) -> None:
    """Neither DDP nor FSDP2 goes on after one. What small buckets had on their way is undone."""

    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)
            self.fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            if self.fails:
                x.register_hook(lambda _: 1 / 0)
            return self.two(x)

    model = Failing()
    cap = 25.0 if steps == 2 else 0.001
    hook = q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD, bucket_cap_mb=cap)
    for fails in (False, True, False):
        model.fails = fails
        model.zero_grad()
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            backward(model, 0)
    found = everywhere(gradients(model)["one.weight"])
    assert_bits(found[0], found[1])
    assert hook.steps == steps
