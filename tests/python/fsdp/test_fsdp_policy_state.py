"""Policies on FSDP2 models: checkpoints, roll-backs, accumulated gradients, other ranks."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_training import (
    Job,
    backward,
    exact_gradients,
    mesh_over,
    own_residuals,
    sharded,
    whole_gradients,
    whole_weights,
)
from values import assert_bits, assert_close

OPTIONS = q7x2.Sharded(gradients="int4:g=128", weights="int8", refresh_every=5)
LEVELS = ["int2:g=128", "int4:g=128", "int8:g=128", "whole"]


def budget() -> q7x2.policy.Policy:
    return q7x2.policy.ErrorBudget(LEVELS, layer_error=0.5, measure_every=2)


def allocation() -> q7x2.policy.Policy:
    return q7x2.policy.BitAllocation("int4:g=128", ["int2:g=128", "int8:g=128"], decide_every=3)


def accordion() -> q7x2.policy.Policy:
    return q7x2.policy.Accordion("int8:g=128", "int2:g=128", decide_every=2)


def guarded(mesh: Any, policy: Any) -> Job:
    job = Job(mesh, OPTIONS, {"policy": policy})
    job.hook.guard(model=job.model, optimizer=job.optimizer)
    return job


def assert_same_jobs(one: Job, other: Job) -> None:
    weights, residuals = whole_weights(other.model), own_residuals(other.hook)
    for name, weight in whole_weights(one.model).items():
        assert_bits(weights[name], weight, name)
    for name, residual in own_residuals(one.hook).items():
        assert_bits(residuals[name], residual, name)


@pytest.mark.parametrize("make", [budget, allocation, accordion])
@pytest.mark.ranks(2, deadline=180)
def test_a_resumed_training_decides_alike_and_has_the_same_bits(make: Any) -> None:
    """As one of which no state was ever taken; at each step of a policy's period."""
    mesh = mesh_over("q7x2")
    untouched = Job(mesh, OPTIONS, {"policy": make()})
    expected = untouched.train(range(9))
    stopped = Job(mesh, OPTIONS, {"policy": make()})
    for step in range(6):
        losses = stopped.train(range(step, step + 1))
        if step < 3:
            assert losses == expected[step : step + 1]
            continue
        resumed = Job(mesh, OPTIONS, {"policy": make()})
        resumed.load(stopped.state())
        assert resumed.train(range(step + 1, 9)) == expected[step + 1 :]
        assert_same_jobs(untouched, resumed)
        ends = [job.hook.policies[0].state_dict() for job in (untouched, resumed)]
        assert ends[0] == ends[1]
        assert ends[0]["history"]
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, ends[0])
    assert everybody[0] == everybody[1]


@pytest.mark.ranks(2)
def test_a_distributed_checkpoint_has_policies(shared: str) -> None:
    mesh = mesh_over("q7x2")
    job = Job(mesh, OPTIONS, {"policy": accordion()})
    job.train(range(5))
    dcp.save({"model": job.model.state_dict(), "hook": job.hook}, checkpoint_id=shared)
    again = Job(mesh, OPTIONS, {"policy": accordion()})
    dcp.load({"model": again.model.state_dict(), "hook": again.hook}, checkpoint_id=shared)
    again.optimizer.load_state_dict(copy.deepcopy(job.optimizer.state_dict()))
    assert again.hook.policies[0].state_dict() == job.hook.policies[0].state_dict()
    assert job.train(range(5, 8)) == again.train(range(5, 8))


@pytest.mark.ranks(2)
def test_a_training_that_diverges_is_rolled_back() -> None:
    """To the bits of a training that was at the last good validation, one level up."""
    mesh = mesh_over("q7x2")
    job = guarded(mesh, q7x2.policy.ErrorBudget(LEVELS))
    job.hook.observe(3.0)
    job.train(range(4))
    # One rank alone has a bad loss: the mean counts.
    good = job.hook.observe(2.0 + dist.get_rank())
    assert (good.loss, good.rolled_back, good.steps) == (2.5, False, 4)
    reference = Job(mesh, OPTIONS, {"policy": q7x2.policy.ErrorBudget(LEVELS, start=1)})
    reference.load({**job.state(), "hook": _without_policies(job.hook.state_dict())})
    job.train(range(4, 7))
    bad = job.hook.observe(math.inf if dist.get_rank() == 1 else 1.0)
    assert (bad.rolled_back, bad.steps, job.hook.steps) == (True, 4, 4)
    (policy,) = job.hook.policies
    assert isinstance(policy, q7x2.policy.ErrorBudget)
    assert policy.level == LEVELS[1]
    assert_same_jobs(reference, job)
    assert reference.train(range(7, 10)) == job.train(range(7, 10))
    assert_same_jobs(reference, job)


def _without_policies(state: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in state.items() if key != "policies"}


@pytest.mark.ranks(2)
def test_policies_accumulate_gradients() -> None:
    model = sharded(mesh_over("q7x2"))
    options = q7x2.Sharded(gradients="int8", weights="none")
    hook = q7x2.attach(model, options, policy=q7x2.policy.Accumulate(2))
    weights = whole_weights(model)
    lasts = []
    for micro in range(2):
        with hook.accumulate() as is_last:
            backward(model, micro)
        lasts.append(is_last)
    assert (lasts, hook.steps, hook.cadence) == ([False, True], 1, 2)
    exact: dict[str, torch.Tensor] = {}
    for micro in range(2):
        for name, p in exact_gradients(micro, range(2), weights).named_parameters():
            if p.grad is not None:
                exact[name] = exact.get(name, 0) + p.grad
    for name, gradient in whole_gradients(model).items():
        atol = float(exact[name].abs().max()) / 50
        assert_close(gradient, exact[name], name, rtol=0.05, atol=atol)


@pytest.mark.ranks(2)
def test_decisions_hold_for_the_model_over_another_group() -> None:
    job = Job(mesh_over("q7x2"), OPTIONS, {"policy": accordion()})
    job.train(range(4))
    weights, history = job.weights(), list(job.hook.policies[0].history)
    other = Job(mesh_over("q7x2"), OPTIONS)
    other.hook.detach()
    other.load_weights(weights)
    job.hook.rebind(other.model)
    assert job.hook.steps == 4
    job.model, job.optimizer = other.model, other.optimizer
    job.train(range(4, 7))
    assert job.hook.policies[0].history[: len(history)] == history
    assert job.hook.observe(1.0).steps == 7
