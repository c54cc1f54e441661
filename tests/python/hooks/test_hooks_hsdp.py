"""HSDP with one line: FSDP2 shards over one dimension of a mesh, a hook averages over the other."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch.distributed as dist
from fsdp_training import Net, backward, net, two_hosts
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from values import assert_bits, assert_close

# Trials of algorithms would round the messages of two models differently.
STEADY = {"Q7X2_ALGO": "ring", "Q7X2_REFINE": "0"}
HOOKS = {
    "dense": q7x2.Allreduce(),
    "int8": q7x2.Quantize("int8"),
    "both": q7x2.Sharded("int8", replica_hook=q7x2.Quantize("int8")),
}


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "shards"))


def sharded(mesh: DeviceMesh, **options: Any) -> Net:
    model = net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def shards(model: nn.Module) -> dict[str, Any]:
    return {
        name: p.grad.to_local().clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


@pytest.mark.ranks(4, fresh=True, env=STEADY)  # torch keeps equal meshes, with their groups
def test_the_line_is_that_of_a_mesh_of_one_dimension() -> None:
    """The same bits as with the replicas given by hand, whether weights are resharded or not."""
    for name, hook in HOOKS.items():
        for reshard in (True, False):
            hosts, replicas = two_hosts()
            expected = sharded(hosts, reshard_after_forward=reshard)
            of_hand = q7x2.attach(expected, hook, replica_group=replicas)
            model = sharded(mesh(), reshard_after_forward=reshard)
            attached = q7x2.attach(model, hook)
            for step in range(3):
                for each in (expected, model):
                    each.zero_grad()
                    backward(each, step)
                found, wanted = shards(model), shards(expected)
                assert found.keys() == wanted.keys()
                for parameter in found:
                    assert_bits(found[parameter], wanted[parameter], (name, step, parameter))
            assert attached.stats.message_bytes == of_hand.stats.message_bytes
            attached.detach()


@pytest.mark.ranks(4, fresh=True, env=STEADY)
def test_gradients_are_those_of_fsdp_and_come_back_to_it() -> None:
    expected, model = sharded(mesh()), sharded(mesh())
    hook = q7x2.attach(model, q7x2.Allreduce())

    def check(step: int) -> None:
        for each in (expected, model):
            each.zero_grad()
            backward(each, step)
        found, wanted = shards(model), shards(expected)
        for name in wanted:
            assert_close(found[name], wanted[name], (step, name), rtol=1e-5, atol=1e-7)

    check(0)
    with hook.no_sync():
        backward(model, 1)
    expected.set_requires_gradient_sync(False)
    backward(expected, 1)
    expected.set_requires_gradient_sync(True)
    assert hook.steps == 1
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor()
    check(2)
    hook.detach()
    check(3)
    assert hook.steps == 2
    assert norm > 0


@pytest.mark.ranks(4, fresh=True, env=STEADY)
def test_wrong_meshes() -> None:
    model = sharded(mesh())
    with pytest.raises(ValueError, match=r"mesh has two dimensions.*expected no replica_group"):
        q7x2.attach(model, q7x2.Allreduce(), replica_group=dist.group.WORLD)
    with pytest.raises(ValueError, match="needs a hook that averages over it"):
        q7x2.attach(model, q7x2.Sharded("int8"))
    backward(model, 0)  # FSDP reduces over both dimensions as before
    mixed = net()
    fully_shard(mixed.blocks[0], mesh=mesh())
    fully_shard(mixed, mesh=two_hosts()[0])
    with pytest.raises(ValueError, match="replicate over different ranks"):
        q7x2.attach(mixed, q7x2.Allreduce())
