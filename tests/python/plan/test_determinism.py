"""The same bits on every rank and in every run, whatever the order of arrival."""

from __future__ import annotations

import hashlib
import random
import time

import harness
import pytest
import torch
import torch.distributed as dist
from pairs import nightly
from values import FEW, HALF, REAL, assert_bits, raw


def noise(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of many magnitudes: their sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(17 + rank)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    return (values * 10 ** (4 * torch.rand(size, generator=generator, dtype=torch.float64))).to(
        dtype
    )


SIZES = (1, 3, 1000, 16_385, 300_007)
MORE = "three ranks in each of three runs show it"
FIRST_CHOICE = {"Q7X2_REFINE": "0"}  # else later calls may add in another order


@pytest.mark.beyond("gloo", "its ring gives each rank its own order for half of the types")
@pytest.mark.ranks(*FEW, 4, 5)
def test_all_ranks_have_the_same_bits(world_size: int) -> None:
    for dtype in [*HALF, *REAL]:
        for size in SIZES:
            tensor = noise(dist.get_rank(), size, dtype)
            dist.all_reduce(tensor)
            everybody = [torch.empty_like(tensor) for _ in range(world_size)]
            dist.all_gather(everybody, tensor)
            for rank, other in enumerate(everybody):
                assert_bits(other, everybody[0], (dtype, size, rank))


def digest(turns: int) -> str:
    """A hash over the results of a mixture of operations with random delays."""
    me = dist.get_rank()
    total = hashlib.sha256()
    delays = random.Random()  # another on each rank and in each run
    for turn in range(turns):
        size = SIZES[turn % len(SIZES)]
        for dtype in (torch.float32, torch.bfloat16):
            time.sleep(delays.random() * 0.003)
            tensor = noise(me + 10 * turn, size, dtype)
            dist.all_reduce(tensor)
            total.update(raw(tensor).numpy().tobytes())
        part = torch.empty(size)
        whole = noise(me + turn, size * dist.get_world_size(), torch.float32)
        dist.reduce_scatter_tensor(part, whole)
        gathered = torch.empty(size * dist.get_world_size())
        dist.all_gather_into_tensor(gathered, part)
        total.update(raw(gathered).numpy().tobytes())
        rooted = noise(me, size, torch.float32)
        dist.reduce(rooted, 0)
        dist.broadcast(rooted, 0)
        total.update(raw(rooted).numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("world_size", [nightly(2, MORE), 3, nightly(4, MORE)])
def test_runs_repeat_bit_for_bit(new_pool, backend, world_size) -> None:
    hashes = set()
    for _ in range(3):
        pool = new_pool(world_size)
        hashes.update(pool.run(digest, harness.GroupSpec(backend), turns=len(SIZES)))
        assert not pool.close()
    assert len(hashes) == 1


@pytest.mark.ranks(3, env=FIRST_CHOICE)
def test_order_does_not_follow_arrival(world_size: int) -> None:
    me = dist.get_rank()
    results = []
    for late in range(world_size):
        dist.barrier()
        if me == late:
            time.sleep(0.05)
        tensor = noise(me, 5000, torch.float32)
        dist.all_reduce(tensor)
        results.append(tensor)
    for tensor in results:
        assert_bits(tensor, results[0])


@pytest.mark.beyond("gloo", "has no such promise")
@pytest.mark.ranks(2, 4, env=FIRST_CHOICE)
def test_a_tensor_and_its_copy_reduce_to_the_same_bits(world_size: int) -> None:
    """Alignment and layout of the memory do not change the result."""
    me = dist.get_rank()
    for size in (5, 4099):
        buffer = torch.zeros(size + 3)
        shifted = buffer[3:]
        shifted.copy_(noise(me, size, torch.float32))
        plain = noise(me, size, torch.float32)
        strided = torch.zeros(size, 2)
        strided[:, 1] = plain
        dist.all_reduce(shifted)
        dist.all_reduce(plain)
        dist.all_reduce(strided[:, 1])
        assert_bits(shifted.clone(), plain, size)
        assert_bits(strided[:, 1].contiguous(), plain, size)
