"""FSDP2, DTensor, device meshes, and checkpoints of what is sharded."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from plain_model import Plain, batch, loss_of
from torch import nn
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks, f32


@pytest.mark.ranks(*FEW)
def test_fully_shard(world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    me = dist.get_rank()
    mesh = init_device_mesh("cpu", (world_size,))
    alone = Plain()
    model = copy.deepcopy(alone)
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ours = torch.optim.Adam(model.parameters(), lr=0.01)
    reference = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        ours.zero_grad()
        loss_of(model, batch(me, step)).backward()
        ours.step()
        reference.zero_grad()
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
        reference.step()
    for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(mine.full_tensor().detach(), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.ranks(4)
def test_hybrid_sharding() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = Plain()
    fully_shard(model, mesh=mesh)
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    assert_same_on_all_ranks([p.grad.full_tensor() for p in model.parameters()])


@pytest.mark.ranks(*FEW)
def test_dtensor_redistribute(world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
    )

    mesh = init_device_mesh("cpu", (world_size,))
    full = torch.arange(7 * 5, dtype=f32).reshape(7, 5)  # 7 rows do not divide evenly
    rows = distribute_tensor(full, mesh, [Shard(0)])
    assert_bits(rows.full_tensor(), full)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert_bits(columns.full_tensor(), full)
    assert_bits(columns.redistribute(mesh, [Replicate()]).to_local(), full)
    partial = DTensor.from_local(torch.ones(6, 4), mesh, [Partial()])
    assert_bits(
        partial.redistribute(mesh, [Replicate()]).to_local(), torch.full((6, 4), float(world_size))
    )
    assert_bits(
        partial.redistribute(mesh, [Shard(0)]).full_tensor(), torch.full((6, 4), float(world_size))
    )
    product = rows @ distribute_tensor(torch.eye(5), mesh, [Replicate()])
    assert_bits(product.full_tensor(), full)


@pytest.mark.ranks(4)
def test_device_mesh_of_two_dimensions() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=mesh.get_group("tp"))
    pair = dist.get_rank() // 2 * 2
    assert_bits(tensor, torch.full((3,), 2.0 * pair + 1))
    full = torch.arange(16, dtype=f32).reshape(4, 4)
    both = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    assert both.to_local().shape == (2, 2)
    assert_bits(both.full_tensor(), full)


@pytest.mark.ranks(2)
def test_tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    alone = Plain()
    model = parallelize_module(
        copy.deepcopy(alone),
        init_device_mesh("cpu", (2,)),
        {"layers.0": ColwiseParallel(), "layers.2": RowwiseParallel()},
    )
    x, _ = batch(0, 0)
    assert_close(model(x), alone(x), rtol=1e-5, atol=1e-6)


# --- distributed checkpoint ----------------------------------------------------------------------


@pytest.mark.ranks(*FEW)
def test_checkpoint(shared: str, world_size: int) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    full = torch.arange(11 * 3, dtype=f32).reshape(11, 3)
    state = {
        "sharded": distribute_tensor(full, mesh, [Shard(0)]),
        "plain": torch.ones(5),
        "step": 7,
    }
    dcp.save(state, checkpoint_id=f"{shared}/checkpoint")
    loaded = {
        "sharded": distribute_tensor(torch.zeros(11, 3), mesh, [Shard(1)]),
        "plain": torch.zeros(5),
        "step": 0,
    }
    dcp.load(loaded, checkpoint_id=f"{shared}/checkpoint")
    assert_bits(loaded["sharded"].full_tensor(), full)
    assert_bits(loaded["plain"], torch.ones(5))
    assert loaded["step"] == 7


@pytest.mark.ranks(2)
def test_checkpoint_async(shared: str) -> None:
    """The staging thread communicates beside the main thread, in a group of its own."""
    import torch.distributed.checkpoint as dcp

    group = dist.new_group()
    state = {"weight": torch.full((1000,), 3.0)}
    future = dcp.async_save(state, checkpoint_id=f"{shared}/async", process_group=group)
    for _ in range(20):
        dist.all_reduce(torch.ones(1000))
    future.result()
    loaded = {"weight": torch.zeros(1000)}
    dcp.load(loaded, checkpoint_id=f"{shared}/async")
    assert_bits(loaded["weight"], torch.full((1000,), 3.0))
