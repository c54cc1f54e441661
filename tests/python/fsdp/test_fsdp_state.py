"""Compressed FSDP2: kill and resume, torch.compile, several meshes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed.checkpoint as dcp
from fsdp_training import Job, adam, backward, mesh_over, net, sharded, train, whole_weights
from pairs import each_value
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from values import assert_bits, assert_same_on_all_ranks

OPTIONS = q7x2.Sharded(gradients="int4:g=128", weights="int8", refresh_every=3)


@pytest.mark.parametrize(("evaluates", "backend"), each_value([True, False], ["q7x2", "gloo"]))
@pytest.mark.ranks(3)
def test_a_resumed_training_has_the_same_bits(evaluates: bool, backend: str) -> None:
    """As one that went on, and as one of which no state was ever taken."""
    mesh = mesh_over(backend)
    untouched, stopped = Job(mesh, OPTIONS), Job(mesh, OPTIONS)
    untouched.train(range(4))
    stopped.train(range(4))
    if evaluates:
        for job in (untouched, stopped):
            job.model(torch.ones(1, 64))
            job.model.reshard()
    state = stopped.state()
    resumed = Job(mesh, OPTIONS)
    resumed.load(state)
    expected = untouched.train(range(4, 7))
    assert stopped.train(range(4, 7)) == expected
    assert resumed.train(range(4, 7)) == expected
    weights = whole_weights(untouched.model)
    for job in (stopped, resumed):
        for name, tensor in whole_weights(job.model).items():
            assert_bits(tensor, weights[name], name)
    for one, other in zip(
        _tensors(untouched.hook.state_dict()), _tensors(resumed.hook.state_dict()), strict=True
    ):
        assert_bits(one, other, "state")


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for value in tree.values() for t in _tensors(value)] if isinstance(tree, dict) else []


@pytest.mark.ranks(3)
def test_a_distributed_checkpoint_resumes_with_the_same_bits(shared: str) -> None:
    mesh = mesh_over("q7x2")
    job = Job(mesh, OPTIONS)
    job.train(range(4))
    dcp.save(
        {"model": job.model.state_dict(), "hook": job.hook}, checkpoint_id=f"{shared}/checkpoint"
    )
    again = Job(mesh, OPTIONS)
    again.train(range(1))
    state = {"model": again.model.state_dict(), "hook": again.hook}
    dcp.load(state, checkpoint_id=f"{shared}/checkpoint")
    again.optimizer.load_state_dict(copy.deepcopy(job.optimizer.state_dict()))
    assert job.train(range(4, 7)) == again.train(range(4, 7))


@pytest.mark.ranks(2)
def test_states_of_other_codecs_are_refused() -> None:
    mesh = mesh_over("q7x2")
    state = Job(mesh, OPTIONS).hook.state_dict()
    other = Job(mesh, q7x2.Sharded(gradients="int8"))
    with pytest.raises(q7x2.hooks.HookStateError, match="gradients was 'int4:g=128' and is 'int8'"):
        other.hook.load_state_dict(state)
    scheduled = Job(mesh, q7x2.Sharded(gradients="int4:g=128", refresh_every=None, start_iter=2))
    scheduled.hook.load_state_dict(state)


@pytest.mark.ranks(2, deadline=180)
def test_a_compiled_model_trains_with_the_same_losses() -> None:
    """FSDP's hooks, and with them the collectives, are outside of compiled graphs."""
    mesh = mesh_over("q7x2")
    plain, whole, blocks = Job(mesh, OPTIONS), Job(mesh, OPTIONS), Job(mesh, OPTIONS)
    expected = plain.train(range(5))
    compiled = torch.compile(whole.model, backend="aot_eager")
    assert train(compiled, whole.optimizer, range(5)) == pytest.approx(expected, rel=1e-4)
    assert whole.hook.steps == 5
    for block in blocks.model.blocks:
        block.compile(backend="aot_eager")
    assert blocks.train(range(5)) == pytest.approx(expected, rel=1e-4)
    assert blocks.hook.stats.weight_message_bytes == plain.hook.stats.weight_message_bytes


@pytest.mark.ranks(4, fresh=True)  # torch keeps equal meshes, with the names of their groups
def test_replicas_of_compressed_shards() -> None:
    """Shards inside a host, replicas between hosts: each its own codec."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    plain = sharded(mesh_over("q7x2"))
    expected = train(plain, adam(plain), range(12))
    model = sharded(mesh["shards"])
    options = q7x2.Sharded(gradients="int8", weights="int8", replica_hook=q7x2.Quantize("int8"))
    hook = q7x2.attach(model, options, replica_group=mesh["replicas"].get_group())
    optimizer = adam(model)
    losses = train(model, optimizer, range(8))
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), hook.state_dict()))
    losses += train(model, optimizer, range(8, 12))
    assert_same_on_all_ranks(list(whole_weights(model).values()))
    assert sum(losses[-5:]) < 1.05 * sum(expected[-5:])
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    hook.load_state_dict(state[2])
    assert train(model, optimizer, range(8, 12)) == losses[8:]
    (local,) = hook.state_dict()["local"].values()
    assert set(local) == {"residual", "gradient_residual"}


@pytest.mark.ranks(2)
def test_modules_of_several_param_groups() -> None:
    """Experts on a mesh of their own, as torch 2.13 has them."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import (
            FSDPMeshInfo,
            ShardPlacementResult,
        )
    except ImportError:
        pytest.skip("this version of FSDP2 has one param group for each module")
    mesh, experts = mesh_over("q7x2"), mesh_over("q7x2")
    model = net()
    placement = ShardPlacementResult(
        placement=torch.distributed.tensor.Shard(0), mesh_info=FSDPMeshInfo(experts, 0)
    )
    expert = set(model.blocks.parameters())
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: placement if p in expert else None)
    hook = q7x2.attach(model, OPTIONS)
    losses = train(model, adam(model), range(5))
    assert hook.stats.buckets == 2 * 5, hook.stats
    reference = sharded(mesh_over("q7x2"))
    expected = train(reference, adam(reference), range(5))
    assert losses == pytest.approx(expected, rel=0.05)


@pytest.mark.ranks(2)
def test_shards_of_other_dimensions() -> None:
    mesh = mesh_over("q7x2")

    def columns(parameter: nn.Parameter) -> Any:
        is_even = parameter.dim() > 1 and parameter.shape[1] % 2 == 0
        return torch.distributed.tensor.Shard(1) if is_even else None

    model = fully_shard(net(), mesh=mesh, shard_placement_fn=columns)
    hook = q7x2.attach(model, OPTIONS)
    optimizer = adam(model)
    train(model, optimizer, range(3))
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), hook.state_dict()))
    expected = train(model, optimizer, range(3, 6))
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    hook.load_state_dict(state[2])
    assert train(model, optimizer, range(3, 6)) == expected
    backward(model, 6)
