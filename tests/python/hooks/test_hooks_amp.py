"""Hooks with a gradient scaler: skipped steps leave no trace, and the scale changes no bit."""

from __future__ import annotations

import copy
import io
import itertools
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_matrix import STATEFUL, every_hook
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    assert_states_equal,
    attached,
    backward,
    everybodys_objects,
    exact,
    parameters_of,
    residuals,
    sgd,
    train,
)
from torch import nn
from values import assert_bits, assert_same_on_all_ranks


@pytest.mark.ranks(2)
def test_a_model_with_a_scaler_can_be_copied_and_pickled() -> None:
    """Copies have no hook, and follow no scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ddp, at_work = attached(HOOKS["powersgd"], attach={"scaler": scaler})
    scaler.scale(torch.ones(1))
    backward(ddp, 0)
    copies = [copy.deepcopy(ddp.module), torch.optim.swa_utils.AveragedModel(ddp)]
    torch.save(ddp, io.BytesIO())
    scaler.update(4.0)
    for each in copies:
        each(torch.zeros(1, 64))
    assert at_work.state_dict()["loss_scale"] == 8.0
    ddp(torch.zeros(1, 64))
    assert at_work.state_dict()["loss_scale"] == 4.0


@pytest.mark.parametrize("hook", [pytest.param(HOOKS[name], id=name) for name in STATEFUL])
@pytest.mark.ranks(2)
def test_a_skipped_step_leaves_no_trace(hook: Any) -> None:
    """One element on one rank, in one of many buckets, compressed or not."""
    ddp, at_work = attached(hook, attach=exact(), **SMALL_BUCKETS)
    train(ddp, sgd(ddp), range(3))
    for name, bad in itertools.product(["layers.2.weight", "layers.0.bias"], [math.inf, math.nan]):
        check_skipped_step(ddp, at_work, name, bad)
    ddp.zero_grad()
    backward(ddp, 4)
    assert all(p.grad.isfinite().all() for p in parameters_of(ddp))


def check_skipped_step(ddp: nn.Module, at_work: q7x2.hooks.Attached, name: str, bad: float) -> None:
    before, skipped = at_work.state_dict(), at_work.stats.skipped_steps
    parameter = dict(ddp.module.named_parameters())[name]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        if dist.get_rank() == 1:
            gradient.view(-1)[5] = bad
        return gradient

    spoiling = parameter.register_hook(spoil)
    ddp.zero_grad()
    backward(ddp, 3)
    spoiling.remove()
    finite = [bool(p.grad.isfinite().all()) for p in parameters_of(ddp)]
    assert not all(finite)
    assert everybodys_objects(finite) == [finite] * 2
    assert at_work.stats.skipped_steps == skipped + 1
    assert_states_equal(before | {"step": before["step"] + 1}, at_work.state_dict())


@every_hook("skipped step")
@pytest.mark.ranks(2)
def test_without_a_scaler_a_skipped_step_costs_residuals_only(
    hook: Any, options: dict[str, Any]
) -> None:
    """There is one copy of them: what the step's gradients had is dropped, and nothing else."""
    ddp, at_work = attached(hook, **options)
    train(ddp, sgd(ddp), range(3))
    before = at_work.state_dict()
    ddp.zero_grad()
    backward(ddp, 3, scale=math.inf)
    after = at_work.state_dict()
    assert at_work.stats.skipped_steps == 1
    assert_states_equal(
        {"step": before["step"] + 1, "shared": before["shared"], "local": {}},
        {**after, "local": {}},
    )
    (local,) = after["local"].values()
    for tensors in local.values():
        for name, tensor in tensors.items():
            assert not tensor.any(), name
    ddp.zero_grad()
    backward(ddp, 4)
    assert all(p.grad.isfinite().all() for p in parameters_of(ddp))
    assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])


@pytest.mark.parametrize(
    "hook",
    [
        HOOKS["powersgd"],
        HOOKS["batched"],
        HOOKS["int4"],
        q7x2.Compose({"1.*": HOOKS["int8"], "*": HOOKS["powersgd"]}),
    ],
    ids=["powersgd", "batched", "int4", "composed"],
)
@pytest.mark.ranks(2)
def test_a_step_skipped_for_a_sparse_gradient_leaves_no_trace(hook: Any) -> None:
    model = nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64), nn.Linear(64, 8))
    ddp, at_work = attached(hook, model, attach=exact(), **SMALL_BUCKETS)
    rows = torch.arange(16) + dist.get_rank()
    for _ in range(5):  # more than one of bursts
        ddp.zero_grad()
        ddp(rows).square().mean().backward()
    before, steps = at_work.state_dict(), at_work.stats.skipped_steps
    ddp.zero_grad()
    ddp.module[0].weight.register_hook(lambda g: g * math.inf if dist.get_rank() == 1 else g)
    ddp(rows).square().mean().backward()
    assert not ddp.module[0].weight.grad.to_dense().isfinite().all()
    assert at_work.stats.skipped_steps == steps + 1
    assert_states_equal(before | {"step": before["step"] + 1}, at_work.state_dict())


@every_hook("loss scale")
@pytest.mark.ranks(2)
def test_a_moving_loss_scale_does_not_change_a_bit(hook: Any, options: dict[str, Any]) -> None:
    """Powers of two are exact, so a scaled training is that of full scale, skipped steps apart."""
    plain, _ = attached(hook, **options)
    train(plain, sgd(plain), range(5))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    ddp, at_work = attached(hook, attach={"scaler": scaler}, **options)
    optimizer = sgd(ddp)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        scales.append(scaler.scale(torch.ones(())).item())
        backward(ddp, step, scale=scales[-1])
        scaler.step(optimizer)
        scaler.update()
    assert len(set(scales)) == 3
    for p, q in zip(parameters_of(ddp), parameters_of(plain), strict=True):
        assert_bits(p, q)
    assert at_work.state_dict()["loss_scale"] == scales[-1]


@pytest.mark.ranks(1)
def test_a_state_of_another_loss_scale_is_converted() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0), attach={"scaler": scaler})
    backward(ddp, 0, scale=8.0)
    saved, expected = at_work.state_dict(), residuals(at_work)
    _, unscaled = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    unscaled.load_state_dict(saved)
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    other, scaled = attached(q7x2.PowerSGD(rank=2, start_iter=0), attach={"scaler": scaler})
    scaled.load_state_dict(saved)
    other(torch.zeros(1, 64))
    for name, residual in expected.items():
        assert_bits(residuals(unscaled)[name], residual / 8, name)
        assert_bits(residuals(scaled)[name], residual * 4, name)
    with pytest.raises(ValueError, match="loss scales must be positive"):
        scaled.scale_changed(0.0, 2.0)
