"""Several tensors in one call, and several calls in one: coalescing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import FEW, assert_bits, blank, f32, integers, payload, sum_of


@pytest.mark.ranks(*FEW)
@pytest.mark.filterwarnings("ignore")
def test_all_reduce_coalesced(world_size: int) -> None:
    shapes = [(3,), (4, 5), (), (0,), (70_000,)]
    tensors = [integers(dist.get_rank(), s, f32, salt=i) for i, s in enumerate(shapes)]
    dist.all_reduce_coalesced(tensors)
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, shapes[i], f32, salt=i), i)


@pytest.mark.ranks(*FEW)
def test_coalescing_manager_all_reduce(world_size: int) -> None:
    """torch turns these into one allreduce_coalesced."""
    shapes = [(3,), (4, 5), (1000,)]
    tensors = [integers(dist.get_rank(), s, f32, salt=i) for i, s in enumerate(shapes)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, shapes[i], f32, salt=i), i)


@pytest.mark.ranks(*FEW)
def test_coalescing_manager_all_reduce_async(world_size: int) -> None:
    tensors = [integers(dist.get_rank(), 100, f32, salt=i) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, 100, f32, salt=i), i)


@pytest.mark.ranks(*FEW)
def test_coalescing_manager_all_gather_into_tensor(world_size: int) -> None:
    """torch turns these into one allgather_into_tensor_coalesced."""
    me = dist.get_rank()
    sizes = [3, 10, 1000]
    outputs = [blank(world_size * n, f32) for n in sizes]
    with dist._coalescing_manager():
        for i, n in enumerate(sizes):
            dist.all_gather_into_tensor(outputs[i], payload(me, n, f32, salt=i))
    for i, n in enumerate(sizes):
        expected = torch.cat([payload(r, n, f32, salt=i) for r in range(world_size)])
        assert_bits(outputs[i], expected, n)


@pytest.mark.ranks(*FEW)
def test_coalescing_manager_reduce_scatter_tensor(world_size: int) -> None:
    """torch turns these into one reduce_scatter_tensor_coalesced."""
    me = dist.get_rank()
    sizes = [3, 10, 1000]
    outputs = [blank(n, f32) for n in sizes]
    with dist._coalescing_manager():
        for i, n in enumerate(sizes):
            joined = torch.cat([integers(me, n, f32, salt=10 * i + p) for p in range(world_size)])
            dist.reduce_scatter_tensor(outputs[i], joined)
    for i, n in enumerate(sizes):
        assert_bits(outputs[i], sum_of(world_size, n, f32, salt=10 * i + me), n)


@pytest.mark.beyond("gloo", "has no coalescing")
@pytest.mark.ranks(*FEW)
def test_coalescing_manager_of_p2p(world_size: int) -> None:
    """With a device, the manager brackets the calls with startCoalescing and endCoalescing."""
    me = dist.get_rank()
    right, left = (me + 1) % world_size, (me - 1) % world_size
    received = blank(50, f32)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(payload(me, 50, f32), right)
        dist.irecv(received, left)
    manager.wait()
    assert_bits(received, payload(left, 50, f32))


@pytest.mark.beyond("gloo", "has no coalescing")
@pytest.mark.ranks(*FEW)
def test_start_and_end_coalescing_with_mixed_operations(world_size: int) -> None:
    me = dist.get_rank()
    group = dist.group.WORLD
    cpu = torch.device("cpu")
    reduced = integers(me, 300, f32)
    spread = payload(me, 20, f32)
    gathered = [blank(7, f32) for _ in range(world_size)]
    group._start_coalescing(cpu)
    group.allreduce([reduced])
    group.broadcast(spread, 1)
    group.allgather([gathered], [payload(me, 7, f32, 1)])
    group._end_coalescing(cpu).wait()
    assert_bits(reduced, sum_of(world_size, 300, f32))
    assert_bits(spread, payload(1, 20, f32))
    for rank, tensor in enumerate(gathered):
        assert_bits(tensor, payload(rank, 7, f32, 1), rank)


@pytest.mark.ranks(1, *FEW)
def test_all_reduce_of_several_tensors_per_rank(world_size: int) -> None:
    """As Gloo: every tensor of every rank is summed and every tensor gets the sum."""
    me = dist.get_rank()
    tensors = [integers(me, 40, f32, salt=i) for i in range(3)]
    dist.group.WORLD.allreduce(tensors).wait()
    expected = sum(sum_of(world_size, 40, f32, salt=i) for i in range(3))
    for tensor in tensors:
        assert_bits(tensor, expected)


@pytest.mark.ranks(*FEW)
def test_broadcast_of_several_tensors_per_rank(world_size: int) -> None:
    """As Gloo: the root tensor of the root rank reaches every tensor of every rank."""
    me = dist.get_rank()
    for root in range(world_size):
        for root_tensor in range(2):
            tensors = [payload(me, 40, f32, salt=i) for i in range(2)]
            options = dist.BroadcastOptions()
            options.rootRank = root
            options.rootTensor = root_tensor
            dist.group.WORLD.broadcast(tensors, options).wait()
            for tensor in tensors:
                assert_bits(tensor, payload(root, 40, f32, salt=root_tensor), (root, root_tensor))


@pytest.mark.ranks(*FEW)
def test_all_gather_of_several_tensors_per_rank(world_size: int) -> None:
    """As Gloo: each output list gets the inputs of all ranks, rank by rank."""
    me = dist.get_rank()
    inputs = [payload(me, 9, f32, salt=i) for i in range(2)]
    outputs = [[blank(9, f32) for _ in range(2 * world_size)] for _ in range(2)]
    dist.group.WORLD.allgather(outputs, inputs).wait()
    for tensors in outputs:
        for i, tensor in enumerate(tensors):
            assert_bits(tensor, payload(i // 2, 9, f32, salt=i % 2), i)
