"""Compressed FSDP2 goes on with other ranks: by states that are loaded, and by `rebind`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import (
    Job,
    adam,
    backward,
    exact_gradients,
    mesh_over,
    own_residuals,
    sharded,
    sum_of_residuals,
    whole_gradients,
    whole_weights,
)
from hook_training import exact
from pairs import each_value
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from values import assert_bits, assert_close

OPTIONS = q7x2.Sharded(gradients="int4:g=128", weights="int8", refresh_every=5)
EXACT_NOW = 100  # start_iter, beyond all steps of these tests

Tensors = dict[str, torch.Tensor]


def gradients_of(model: nn.Module, step: int, ranks: range) -> tuple[Tensors, Tensors]:
    """Those of a backward in ``step``, and their exact mean over ``ranks``; of matrices."""
    weights = whole_weights(model)
    model.zero_grad()
    backward(model, step)
    received = {name: g.double() for name, g in whole_gradients(model).items() if g.dim() > 1}
    unsharded = exact_gradients(step, ranks, weights)
    return received, {name: unsharded.get_parameter(name).grad.double() for name in received}


def added_by_residuals(job: Job, ranks: range) -> Tensors:
    """What a step in full precision delivers beyond its own mean: all that the mean has lacked."""
    received, mean = gradients_of(job.model, 3, ranks)
    assert not any(residual.any() for residual in own_residuals(job.hook).values())
    return {name: received[name] - mean[name] for name in received}


def assert_same_lack(after: Tensors, before: Tensors, tolerance: float) -> None:
    assert after.keys() == before.keys()
    for name, lack in before.items():
        assert lack.norm() > 0, name
        error = (after[name] - lack).norm() / lack.norm()
        assert error < tolerance, (name, error)


@pytest.mark.parametrize(("dtype", "backend"), each_value([None, torch.float16], ["q7x2", "gloo"]))
@pytest.mark.ranks(3, fresh=True)  # torch counts groups per rank, and rank 2 is not in one of them
def test_states_of_more_ranks_add_to_the_mean_what_it_lacked(
    dtype: torch.dtype | None, backend: str
) -> None:
    """FSDP divides sums in float16 itself, before and after them."""
    fsdp = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=dtype)}
    options = q7x2.Sharded(gradients="int4:g=128", weights="none")
    mesh = mesh_over(backend)
    job = Job(mesh, options, **fsdp)
    job.train(range(2))
    states: list[Any] = [None] * 3
    dist.all_gather_object(states, job.hook.state_dict())
    weights = job.weights()
    later = replace(options, start_iter=EXACT_NOW)
    same = Job(mesh, later, **fsdp)
    same.load_weights(weights)
    same.hook.load_state_dict(states[dist.get_rank()])
    before = added_by_residuals(same, range(3))
    group = dist.new_group([0, 1], backend=backend)
    if dist.get_rank() == 2:
        return
    fewer = Job(DeviceMesh.from_group(group, "cpu"), later, **fsdp)
    with pytest.raises(q7x2.hooks.HookStateError, match="load the states of all 3 ranks"):
        fewer.hook.load_state_dict(states[0])
    fewer.load_weights(weights)
    fewer.hook.load_state_dict(states)
    tolerance = 1e-3 if dtype is None else 0.05
    assert_same_lack(added_by_residuals(fewer, range(2)), before, tolerance)


@pytest.mark.ranks(4, fresh=True)
def test_states_of_more_replicas_add_to_the_mean_what_it_lacked() -> None:
    options = q7x2.Sharded(
        gradients="int4:g=128", weights="none", replica_hook=q7x2.Allreduce(), start_iter=0
    )
    later = replace(options, start_iter=EXACT_NOW)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    attach = {"replica_group": mesh["replicas"].get_group()}
    job = Job(mesh["shards"], options, attach)
    job.train(range(2))
    states: list[Any] = [None] * 4
    dist.all_gather_object(states, job.hook.state_dict())
    weights = job.weights()
    same = Job(mesh["shards"], later, attach)
    same.load_weights(weights)
    same.hook.load_state_dict(states[dist.get_rank()])
    before = added_by_residuals(same, range(4))
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    alone = [dist.new_group([0]), dist.new_group([1])]
    if rank > 1:
        return
    fewer = Job(DeviceMesh.from_group(pair, "cpu"), later, {"replica_group": alone[rank]})
    fewer.load_weights(weights)
    fewer.hook.load_state_dict([states[rank], states[rank + 2]])
    assert_same_lack(added_by_residuals(fewer, range(2)), before, 1e-3)


@pytest.mark.ranks(3, fresh=True)
def test_weights_that_all_hold_go_on_with_other_ranks() -> None:
    job = Job(mesh_over("q7x2"), OPTIONS)
    job.train(range(3))
    states: list[Any] = [None] * 3
    dist.all_gather_object(states, job.hook.state_dict())
    weights = job.weights()
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    other = Job(DeviceMesh.from_group(group, "cpu"), OPTIONS)
    other.load_weights(weights)
    other.hook.load_state_dict(states)
    refreshes = other.hook.stats.refreshes
    other.train(range(3, 5))
    assert other.hook.stats.refreshes == refreshes


@pytest.mark.parametrize("backend", ["q7x2", "gloo"])
@pytest.mark.ranks(3, fresh=True)
def test_fewer_ranks_go_on_with_what_they_kept(backend: str) -> None:
    job = Job(mesh_over(backend), OPTIONS)
    job.train(range(3))
    weights, kept = job.weights(), own_residuals(job.hook)
    pair = dist.new_group([0, 1], backend=backend)
    if dist.get_rank() == 2:
        return
    smaller = sharded(DeviceMesh.from_group(pair, "cpu"))
    job.hook.rebind(smaller)
    assert job.hook.steps == 3
    for name, residual in own_residuals(job.hook).items():
        assert_bits(residual, kept[name], name)
    job.model = smaller
    job.load_weights(weights)
    before = sum_of_residuals(job.hook, pair)
    received, mean = gradients_of(smaller, 3, range(2))
    after = sum_of_residuals(job.hook, pair)
    for name, gradient in received.items():
        total = gradient + after[name] - before[name]
        # The module computes with gathered weights, the reference with those of the shards.
        assert_close(total, mean[name], name, rtol=0.02, atol=2e-3 * mean[name].abs().max().item())
    assert job.hook.steps == 4
    for old in job.hook.state_dict()["local"]:
        assert old in ("rank_0", "rank_1")


@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.ranks(2)
def test_another_group_goes_on_after_a_failed_step(weights: str) -> None:
    """Rank 1 leaves its backward, so that rank 0 waits until its time is over."""
    options = q7x2.Sharded(gradients="int4:g=128", weights=weights)
    untouched = Job(mesh_over("q7x2"), options)
    group = dist.new_group(timeout=timedelta(seconds=2))
    job = Job(DeviceMesh.from_group(group, "cpu"), options, exact())
    untouched.train(range(3))
    job.train(range(3))
    state, kept = job.state(), own_residuals(job.hook)

    def leave(*_: Any) -> None:
        raise RuntimeError("rank 1 leaves")

    if dist.get_rank() == 1:
        job.model.blocks[1].outer.register_full_backward_pre_hook(leave)
    with pytest.raises(RuntimeError):
        backward(job.model, 3)
    dist.barrier()
    again = sharded(mesh_over("q7x2"))
    job.hook.rebind(again)
    for name, residual in own_residuals(job.hook).items():
        assert_bits(residual, kept[name], name)
    with pytest.raises(RuntimeError, match="has a hook of q7x2 already"):
        job.hook.rebind(again)
    job.model, job.optimizer = again, adam(again)
    again.load_state_dict(state["model"])
    job.optimizer.load_state_dict(state["optimizer"])
    losses, expected = job.train(range(3, 8)), untouched.train(range(3, 8))
    assert job.hook.steps == 8
    if weights == "bf16":
        assert losses == expected
    else:  # sent whole once
        assert losses == pytest.approx(expected, rel=1e-3)
    job.hook.rebind(sharded(mesh_over("q7x2")))
    backward(again, 8)  # by FSDP's own collectives
    assert job.hook.steps == 8


@pytest.mark.ranks(2)
def test_models_that_cannot_be_taken_over() -> None:
    mesh = mesh_over("q7x2")
    job = Job(mesh, OPTIONS)
    with pytest.raises(TypeError, match="needs an FSDPModule, got Linear"):
        job.hook.rebind(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="names or shapes of parameters differ"):
        job.hook.rebind(fully_shard(nn.Linear(64, 64), mesh=mesh))
    state = job.hook.state_dict()
    if dist.get_rank() == 1:
        job.hook.load_state_dict(state | {"step": 7})
    with pytest.raises(ValueError, match=r"rank 0 has step=0 where rank 1 of the group has step=7"):
        job.hook.rebind(sharded(mesh))
    job.hook.load_state_dict(state)
    job.train(range(2))  # the old model goes on
