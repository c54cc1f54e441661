"""Every algorithm on real ranks: exact sums, and the same bits everywhere."""

from __future__ import annotations

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import assert_bits, integers, payload

SIZES = (1, 3, 1000, 16_385, 300_007)
DTYPES = (torch.float32, torch.bfloat16, torch.int64)

# Those that need a Fabric of several hosts leave the choice to the planner here.
ALGORITHMS = (
    "aggregator",
    "binomial_tree",
    "blink",
    "ccube",
    "chain",
    "direct",
    "double_binary_tree",
    "halving_doubling",
    "hierarchical",
    "multitree",
    "recursive_doubling",
    "ring",
    "sra",
)

pytestmark = pytest.mark.beyond("gloo", "its algorithms cannot be chosen")


def total(size: int, dtype: torch.dtype) -> torch.Tensor:
    contributions = [integers(rank, size, dtype) for rank in range(dist.get_world_size())]
    return torch.stack(contributions).to(torch.float64).sum(0).to(dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.ranks(4, 5)
def test_reductions(world_size: int, algorithm: str) -> None:
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    me = dist.get_rank()
    for dtype in DTYPES:
        for size in SIZES:
            case = (algorithm, dtype, size)
            tensor = integers(me, size, dtype)
            dist.all_reduce(tensor, group=group)
            assert_bits(tensor, total(size, dtype), case)

            root = size % world_size
            tensor = integers(me, size, dtype)
            dist.reduce(tensor, root, group=group)
            expected = total(size, dtype) if me == root else integers(me, size, dtype)
            assert_bits(tensor, expected, case)

            part = torch.empty(size, dtype=dtype)
            dist.reduce_scatter_tensor(part, integers(me, size * world_size, dtype), group=group)
            assert_bits(part, total(size * world_size, dtype)[size * me : size * (me + 1)], case)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.ranks(4, 5)
def test_what_only_moves(world_size: int, algorithm: str) -> None:
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    for size in SIZES:
        root = size % world_size
        tensor = payload(dist.get_rank(), size, torch.float32)
        dist.broadcast(tensor, root, group=group)
        assert_bits(tensor, payload(root, size, torch.float32), (algorithm, size))

        everybody = [torch.empty(size) for _ in range(world_size)]
        dist.all_gather(everybody, payload(dist.get_rank(), size, torch.float32), group=group)
        for rank, other in enumerate(everybody):
            assert_bits(other, payload(rank, size, torch.float32), (algorithm, size, rank))
        dist.barrier(group)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.ranks(4, 5)
def test_all_ranks_have_the_same_bits(world_size: int, algorithm: str) -> None:
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    for size in SIZES:
        generator = torch.Generator().manual_seed(dist.get_rank())
        tensor = torch.randn(size, generator=generator)
        dist.all_reduce(tensor, group=group)
        everybody = [torch.empty(size) for _ in range(world_size)]
        dist.all_gather(everybody, tensor)
        for rank, other in enumerate(everybody):
            assert_bits(other, everybody[0], (algorithm, size, rank))
    dist.destroy_process_group(group)
