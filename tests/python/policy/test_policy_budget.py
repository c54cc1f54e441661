"""``ErrorBudget``: levels that follow errors and validation losses, and trainings rolled back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import SMALL_BUCKETS, attached, backward, sgd
from policy_training import given, gradients_of, step_of
from q7x2.policy.snapshots import Snapshots
from torch import nn
from values import assert_same_on_all_ranks


@pytest.mark.ranks(2)
def test_errors_beyond_the_budget_tighten_single_gradients() -> None:
    policy = q7x2.policy.ErrorBudget(
        ["int2:g=128", "int4:g=128", "int8:g=128", "whole"], layer_error=0.3, measure_every=1
    )
    ddp, _ = given(q7x2.Quantize("int8:g=128"), policy, 2)
    for step in range(6):
        noise = gradients_of(step, 2)
        step_of(ddp, [noise[0], noise[1].sign()])  # int2 loses nothing of the second one
    alarms = {event.parameter for event in policy.history if event.kind == "alarm"}
    assert alarms == {"layers.0"}
    assert policy.level == "int2:g=128"
    assert policy.state_dict()["single"]["layers.0"]["above"] >= 1


def test_an_error_of_all_gradients_tightens_the_common_level() -> None:
    policy = q7x2.policy.ErrorBudget(["int2", "int4", "int8"], total_error=0.5)
    policy.bind({"a": 4, "b": 4})

    def level_after(step: int, residual: float) -> str | int:
        gradient = q7x2.policy.GradientFacts(1.0, residual, 2)
        policy.decide(step + 1, q7x2.policy.Facts(step, gradients={"a": gradient, "b": gradient}))
        return policy.level

    assert level_after(0, 0.4) == "int2"
    assert level_after(10, 0.6) == "int4"
    assert level_after(20, 0.4) == "int4"
    assert [level_after(step, 0.6) for step in (30, 40)] == ["int8", "int8"]
    assert [e.step for e in policy.history if e.kind == "alarm"] == [11, 31, 41]
    assert policy.decide(41, q7x2.policy.Facts(40, is_finite=False)).parameters["a"].level == "int8"


def test_what_counts_as_a_divergence() -> None:
    def verdicts(*losses: float) -> list[bool]:
        policy = q7x2.policy.ErrorBudget([1, 4], max_rise=0.2)
        policy.bind({"w": 4})
        return [policy.observe(loss, 0) is q7x2.policy.Verdict.DIVERGED for loss in losses]

    assert verdicts(5.0, 5.9, 6.1) == [False, False, True]
    assert verdicts(5.0, 1.0, 1.7, 1.9) == [False, False, False, True]
    assert verdicts(5.0, 0.01, 0.02, 0.9, 1.1) == [False] * 4 + [True]  # almost nothing is left
    assert verdicts(-1.0, -3.0, -2.5, -2.3) == [False, False, False, True]
    assert verdicts(math.nan, 1.0, math.inf) == [True, False, True]


def test_snapshots_share_nothing_with_what_they_were_taken_of() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])  # its state has a Counter

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()

    step()
    snapshots = Snapshots({"model": model, "optimizer": optimizer, "scheduler": scheduler}, 2)
    snapshots.take({"step": 1})
    weight, rate = model.weight.detach().clone(), optimizer.param_groups[0]["lr"]
    for _ in range(2):  # once more, after a roll-back
        for _ in range(3):
            step()
        assert snapshots.restore() == {"step": 1}
        assert torch.equal(model.weight, weight)
        assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == rate
        assert scheduler.milestones == {1: 1, 3: 1}
    snapshots.take({"step": 2})
    assert snapshots.restore() == {"step": 2}
    assert snapshots.restore() == {"step": 1}  # the last good one was not good enough


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first = nn.Linear(32, 64)
            self.last = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def _data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 32, generator=generator)
    return x, torch.sin(2 * x)


def _loss(model: nn.Module, seed: int) -> torch.Tensor:
    x, y = _data(seed)
    return nn.functional.mse_loss(model(x), y)


def train(policy: Any, kick: int | None, seed: int = 0) -> tuple[float, Any, Any]:
    """120 steps with a validation each 20; at the step ``kick`` the learning rate rises 30 fold."""
    ddp, hook = attached(q7x2.Quantize("int8"), Small(), attach={"policy": policy})
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.9)
    hook.guard(model=ddp, optimizer=optimizer)
    with torch.no_grad():
        hook.observe(_loss(ddp.module, 999_999).item())
    rank, noticed = dist.get_rank(), []
    while (step := hook.steps) < 120:
        if step == kick:
            kick = None
            for group in optimizer.param_groups:
                group["lr"] *= 30
        optimizer.zero_grad()
        _loss(ddp, 10_000 * seed + 2 * step + rank).backward()
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                seen = hook.observe(_loss(ddp.module, 999_999).item())
            if seen.rolled_back:
                noticed.append(step)
                assert seen.steps == hook.steps == 60
    with torch.no_grad():
        return _loss(ddp.module, 999_998).item(), noticed, ddp


@pytest.mark.ranks(2)
def test_a_forced_divergence_is_noticed_and_undone() -> None:
    def budget(start: int) -> Any:
        return q7x2.policy.ErrorBudget(["int2:g=128", "int8"], start=start)

    policy = budget(0)
    loss, noticed, ddp = train(policy, kick=65)
    assert noticed == [79]  # the first validation after it
    assert policy.level == "int8"
    kinds = [event.kind for event in policy.history]
    assert kinds.count("divergence") == kinds.count("roll_back") == 1
    assert_same_on_all_ranks(list(ddp.parameters()))
    if dist.get_rank() == 0:
        assert len(q7x2.policy.plot_policy(policy).axes) == 3
    tight = [train(budget(1), None, seed)[0] for seed in (0, 1)]
    noise = abs(tight[0] - tight[1])
    assert abs(loss - tight[0]) < max(3 * noise, 0.1 * tight[0]), (loss, tight)


@pytest.mark.ranks(2)
def test_a_divergence_that_nothing_helps_against_is_an_error() -> None:
    policy = q7x2.policy.ErrorBudget(["int2", "int8"])
    ddp, hook = attached(q7x2.Quantize("int8"), attach={"policy": policy}, **SMALL_BUCKETS)
    with pytest.raises(RuntimeError, match="there is no snapshot"):
        hook.roll_back()
    hook.observe(1.0)
    with pytest.raises(q7x2.policy.DivergenceError, match=r"hook\.guard"):
        hook.observe(math.inf if dist.get_rank() == 0 else 1.0)
    optimizer = sgd(ddp)
    hook.guard(model=ddp, optimizer=optimizer)
    for _ in range(4):
        backward(ddp, 0)
        optimizer.step()
        assert hook.observe(math.nan).rolled_back
        assert hook.steps == 0
    with pytest.raises(q7x2.policy.DivergenceError, match="has diverged 5 times"):
        hook.observe(math.nan)
    with pytest.raises(TypeError, match="state_dict and load_state_dict, got int"):
        hook.guard(model=3)
    _, plain = attached(q7x2.Quantize("int8"))
    with pytest.raises(RuntimeError, match="attached with a policy"):
        plain.observe(1.0)


LEVELS = {
    "budget": lambda low, high: q7x2.policy.ErrorBudget([low, high]),
    "accordion": lambda low, high: q7x2.policy.Accordion(high, low),
    "bits": lambda low, high: q7x2.policy.BitAllocation(low, [high]),
}


@pytest.mark.parametrize("name", LEVELS)
def test_a_state_belongs_to_the_levels_that_it_was_taken_with(name: str) -> None:
    make = LEVELS[name]
    state = make("int4", "int8").state_dict()
    make("int4", "int8").load_state_dict(state)
    with pytest.raises(ValueError, match=r"with the levels .*int6.*got one with .*int4"):
        make("int6", "int8").load_state_dict(state)
    del state["levels"]  # a version in which int4 meant another codec in policies
    with pytest.raises(ValueError, match=r"'int4' meant 'hadamard\+int4:g=128'"):
        make("int4", "int8").load_state_dict(state)
    make("hadamard+int4:g=128", "int8").load_state_dict(state)
