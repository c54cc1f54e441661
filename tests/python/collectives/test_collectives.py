"""Collectives together: of objects, many kinds in flight, late ranks, more than 2^31 bytes."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from values import FEW, assert_bits, blank, f32, integers, payload, sum_of

# --- objects -----------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_object_collectives(world_size: int) -> None:
    me = dist.get_rank()
    mine = {"rank": me, "text": "x" * (100 * me), "tensor": torch.full((3,), me)}
    everything: list = [None] * world_size
    dist.all_gather_object(everything, mine)
    assert [o["rank"] for o in everything] == list(range(world_size))
    assert [len(o["text"]) for o in everything] == [100 * r for r in range(world_size)]

    at_root: list | None = [None] * world_size if me == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    if me == 1:
        assert [o["rank"] for o in at_root] == list(range(world_size))

    spread = [{"from": me}, me]
    dist.broadcast_object_list(spread, src=1)
    assert spread == [{"from": 1}, 1]

    out: list = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(world_size)] if me == 0 else None, 0)
    assert out == [f"for {me}"]


@pytest.mark.ranks(*FEW)
def test_send_and_receive_objects(world_size: int) -> None:
    if dist.get_rank() == 0:
        dist.send_object_list([1, "two", {"three": 3}], dst=1)
    elif dist.get_rank() == 1:
        objects: list = [None] * 3
        dist.recv_object_list(objects, src=0)
        assert objects == [1, "two", {"three": 3}]


# --- order and mixture -------------------------------------------------------------------------


@pytest.mark.ranks(*FEW, 4)
def test_many_different_operations_in_flight(world_size: int) -> None:
    me = dist.get_rank()
    pending = []
    for turn in range(20):
        reduced = integers(me, 100 + turn, f32, salt=turn)
        spread = payload(me, 10 + turn, f32, salt=turn)
        gathered = blank(world_size * (5 + turn), f32)
        works = [
            dist.all_reduce(reduced, async_op=True),
            dist.broadcast(spread, turn % world_size, async_op=True),
            dist.all_gather_into_tensor(
                gathered, payload(me, 5 + turn, f32, salt=turn), async_op=True
            ),
            dist.barrier(async_op=True),
        ]
        pending.append((works, reduced, spread, gathered))
    for turn, (works, reduced, spread, gathered) in reversed(list(enumerate(pending))):
        for work in reversed(works):
            work.wait()
        assert_bits(reduced, sum_of(world_size, 100 + turn, f32, salt=turn), turn)
        assert_bits(spread, payload(turn % world_size, 10 + turn, f32, salt=turn), turn)
        parts = [payload(r, 5 + turn, f32, salt=turn) for r in range(world_size)]
        assert_bits(gathered, torch.cat(parts), turn)


@pytest.mark.ranks(3, 4)
def test_ranks_arrive_at_different_times(world_size: int) -> None:
    me = dist.get_rank()
    for turn in range(world_size):
        if turn == me:
            time.sleep(0.05)
        tensor = integers(me, 3000, f32, salt=turn)
        dist.all_reduce(tensor)
        assert_bits(tensor, sum_of(world_size, 3000, f32, salt=turn), turn)


# --- more than 2^31 bytes ----------------------------------------------------------------------


@pytest.mark.nightly("takes many gigabytes")
@pytest.mark.timeout(500)
@pytest.mark.ranks(2, fresh=True, deadline=400, timeout=300)
def test_more_than_two_gigabytes(world_size: int) -> None:
    """Byte counts and element counts past 2^31: an int32 anywhere in the path shows here."""
    me = dist.get_rank()
    size = (1 << 31) + 4099
    probes = torch.tensor([0, 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, size - 1])

    tensor = torch.zeros(size, dtype=torch.int8)
    if me == 0:
        tensor[probes] = torch.arange(1, 7, dtype=torch.int8)
    dist.broadcast(tensor, 0)
    assert tensor[probes].tolist() == [1, 2, 3, 4, 5, 6]
    assert int(tensor.count_nonzero()) == 6

    tensor[probes] += me
    dist.all_reduce(tensor)
    assert tensor[probes].tolist() == [3, 5, 7, 9, 11, 13]
    assert int(tensor.count_nonzero()) == 6

    if me == 0:
        dist.send(tensor, 1)
    else:
        other = torch.zeros_like(tensor)
        dist.recv(other, 0)
        assert torch.equal(other, tensor)
    dist.barrier()
