"""Every algorithm on real ranks: exact sums, and the same bits everywhere."""

from __future__ import annotations

import functools
import json

import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2._core.extension import load
from values import assert_bits, integers, payload

SIZES = (1, 3, 1000, 16_385, 150_001)
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
    "torus",
)

pytestmark = pytest.mark.beyond("gloo", "its algorithms cannot be chosen")


# All algorithms reduce and move the same numbers, which take longer to make than to move.
_sums: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
random_bits = functools.cache(payload)


@functools.cache
def _contribution(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return integers(rank, size, dtype)


def contribution(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Of this rank, in a tensor that a call may write to."""
    return _contribution(dist.get_rank(), size, dtype).clone()


def total(size: int, dtype: torch.dtype) -> torch.Tensor:
    world = dist.get_world_size()
    if (world, size, dtype) not in _sums:
        given = [integers(rank, size, dtype) for rank in range(world)]
        _sums[world, size, dtype] = torch.stack(given).to(torch.float64).sum(0).to(dtype)
    return _sums[world, size, dtype]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.ranks(4, 5)
def test_reductions(world_size: int, algorithm: str) -> None:
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    me = dist.get_rank()
    for dtype in DTYPES:
        for size in SIZES if dtype == torch.float32 else SIZES[:-1]:  # bytes make the difference
            case = (algorithm, dtype, size)
            tensor = contribution(size, dtype)
            dist.all_reduce(tensor, group=group)
            assert_bits(tensor, total(size, dtype), case)

            root = size % world_size
            tensor = contribution(size, dtype)
            dist.reduce(tensor, root, group=group)
            expected = total(size, dtype) if me == root else contribution(size, dtype)
            assert_bits(tensor, expected, case)

            part = torch.empty(size, dtype=dtype)
            dist.reduce_scatter_tensor(part, contribution(size * world_size, dtype), group=group)
            assert_bits(part, total(size * world_size, dtype)[size * me : size * (me + 1)], case)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.ranks(4, 5)
def test_what_only_moves(world_size: int, algorithm: str) -> None:
    me = dist.get_rank()
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    for size in SIZES:
        root = size % world_size
        tensor = random_bits(me, size, torch.float32).clone()
        dist.broadcast(tensor, root, group=group)
        assert_bits(tensor, random_bits(root, size, torch.float32), (algorithm, size))

        everybody = [torch.empty(size) for _ in range(world_size)]
        dist.all_gather(everybody, random_bits(me, size, torch.float32), group=group)
        for rank, other in enumerate(everybody):
            assert_bits(other, random_bits(rank, size, torch.float32), (algorithm, size, rank))
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


# ---- two hosts -----------------------------------------------------------------------------------


def some_hosts(ranks: list[int], private_link: bool = False) -> str:
    """A Fabric for plans: the ranks' processes share this host, and their plans think otherwise."""
    hosts = [{"name": name, "cores": 4, "egress": 1.25e8, "ingress": 1.25e8} for name in "abc"]
    hosts = hosts[: max(ranks) + 1]
    pairs = [
        {"from": a, "to": b, "alpha": 3e-5, "rate": 1.25e8}
        for a in range(len(hosts))
        for b in range(len(hosts))
        if a != b
    ]
    links = [{"a": 0, "b": 1, "rate": 1.25e8, "alpha": 3e-5}] if private_link else []
    return json.dumps(
        {"q7x2_fabric": 1, "hosts": hosts, "ranks": ranks, "pairs": pairs, "links": links}
    )


def is_offered(fabric: str, op: str, algorithm: str) -> bool:
    """Else the planner would choose another one, and this test would pass for nothing."""
    candidates = load().explain(op, 1 << 20, fabric)
    return any(each["algorithm"].split(":")[0] == algorithm.split(":")[0] for each in candidates)


@pytest.mark.parametrize(
    "algorithm", ["hierarchical", "hierarchical:{leaders}", "blink", "multitree", "earliest_edge"]
)
@pytest.mark.parametrize("placement", ["blocks", "interleaved"])
@pytest.mark.ranks(4, 6)
def test_plans_of_two_hosts(world_size: int, placement: str, algorithm: str) -> None:
    me = dist.get_rank()
    algorithm = algorithm.format(leaders=world_size // 2)
    ranks = [r * 2 // world_size if placement == "blocks" else r % 2 for r in range(world_size)]
    fabric = some_hosts(ranks, private_link=algorithm in ("blink", "earliest_edge"))
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    group._get_backend(torch.device("cpu")).set_fabric(fabric)
    assert is_offered(fabric, "all_reduce", algorithm)
    for size in SIZES:
        case = (algorithm, size)
        tensor = contribution(size, torch.float32)
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, total(size, torch.float32), case)
        if ":" in algorithm:  # so many leaders are for all-reduce only
            continue

        root = size % world_size
        tensor = random_bits(me, size, torch.float32).clone()
        dist.broadcast(tensor, root, group=group)
        assert_bits(tensor, random_bits(root, size, torch.float32), case)

        tensor = contribution(size, torch.float32)
        dist.reduce(tensor, root, group=group)
        expected = total(size, torch.float32) if me == root else contribution(size, torch.float32)
        assert_bits(tensor, expected, case)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2]])
@pytest.mark.ranks(6)
def test_rings_of_three_hosts(world_size: int, hosts: list[int]) -> None:
    fabric = some_hosts(hosts)
    group = dist.new_group(pg_options=q7x2.Options(algorithms="blueconnect"))
    group._get_backend(torch.device("cpu")).set_fabric(fabric)
    assert is_offered(fabric, "all_reduce", "blueconnect")
    for size in SIZES:
        tensor = contribution(size, torch.float32)
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, total(size, torch.float32), size)
    dist.destroy_process_group(group)


@pytest.mark.ranks(4)
def test_coded_plans_of_two_hosts(world_size: int) -> None:
    """Dense inside a host, compressed between hosts: the errors of one host's sum, not of ranks."""
    fabric = some_hosts([0, 0, 1, 1])
    group = dist.new_group(pg_options=q7x2.Options(algorithms="hierarchical"))
    group._get_backend(torch.device("cpu")).set_fabric(fabric)
    me = dist.get_rank()
    residual = torch.zeros(300_007)
    owed = torch.zeros(300_007, dtype=torch.float64)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + me)
        given = torch.randn(300_007, generator=generator)
        put_in = given.double()
        dist.all_reduce(put_in)
        q7x2.all_reduce(given, codec="int8", group=group, residual=residual, step=step)
        left = residual.double()
        dist.all_reduce(left)
        torch.testing.assert_close(given.double() + left, owed + put_in, rtol=1e-5, atol=1e-5)
        owed = left
        everybody = [torch.empty_like(given) for _ in range(world_size)]
        dist.all_gather(everybody, given)
        for other in everybody:
            assert_bits(other, everybody[0], step)
    dist.destroy_process_group(group)
