"""AVG and PREMUL_SUM of every collective that reduces."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import FEW, FP8, HALF, REAL, assert_bits, assert_close, blank, integers, reals, wide

AVG = dist.ReduceOp.AVG
COLLECTIVES = ["all_reduce", "reduce", "reduce_scatter"]


def reduced(collective: str, tensor: torch.Tensor, op: object) -> tuple[torch.Tensor, slice] | None:
    """The result on this rank, and which part of the whole it is; None: it has no result."""
    me, world = dist.get_rank(), dist.get_world_size()
    if collective == "reduce_scatter":
        count = tensor.numel() // world
        part = blank(count, tensor.dtype)
        dist.reduce_scatter_tensor(part, tensor, op)
        return part, slice(count * me, count * (me + 1))
    result = tensor.clone()
    if collective == "reduce":
        dist.reduce(result, 0, op)
        return (result, slice(None)) if me == 0 else None
    dist.all_reduce(result, op)
    return result, slice(None)


@pytest.mark.beyond("gloo", "has no AVG in this version of torch")
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.ranks(1, *FEW, 4, 5)
def test_average(world_size: int, collective: str) -> None:
    me = dist.get_rank()
    for dtype in [*HALF, *REAL, *FP8]:
        parts = [reals(r, 300 * world_size, dtype, 2) for r in range(world_size)]
        if (result := reduced(collective, parts[me], AVG)) is None:
            continue
        tensor, part = result
        expected = (sum(p.to(wide(dtype)) for p in parts) / world_size)[part]
        if dtype in FP8:
            step = 0.26 if dtype in (torch.float8_e5m2, torch.float8_e5m2fnuz) else 0.13
            assert_close(tensor.float(), expected, dtype, step, 1e-2)
        else:
            assert_close(tensor, expected.to(dtype), dtype)


@pytest.mark.beyond("gloo", "has no AVG in this version of torch")
@pytest.mark.ranks(2, 3)
def test_average_of_integers(world_size: int) -> None:
    """NCCL's meaning: the sum divided by the world size, in the tensor's own arithmetic."""
    tensor = torch.tensor([3 + dist.get_rank(), 10], dtype=torch.int32)
    dist.all_reduce(tensor, AVG)
    total = 3 * world_size + world_size * (world_size - 1) // 2
    assert tensor.tolist() == [total // world_size, 10]


@pytest.mark.beyond("gloo", "has no PREMUL_SUM")
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.ranks(1, *FEW, 4)
def test_premul_sum_with_a_number(world_size: int, collective: str) -> None:
    me = dist.get_rank()
    op = dist._make_nccl_premul_sum(0.5)
    for dtype in [*HALF, *REAL]:
        parts = [integers(r, 20 * world_size, dtype, 4) for r in range(world_size)]
        if (result := reduced(collective, parts[me], op)) is None:
            continue
        tensor, part = result
        expected = sum(p.double() * 0.5 for p in parts)[part].to(dtype)
        assert_bits(tensor, expected, dtype)


@pytest.mark.beyond("gloo", "has no PREMUL_SUM")
@pytest.mark.ranks(*FEW)
def test_premul_sum_with_a_tensor(world_size: int) -> None:
    """The factor may be another on each rank."""
    me = dist.get_rank()
    op = dist._make_nccl_premul_sum(torch.tensor([float(me + 1)]))
    tensor = torch.ones(30)
    dist.all_reduce(tensor, op)
    assert_bits(tensor, torch.full((30,), world_size * (world_size + 1) / 2))


@pytest.mark.beyond("gloo", "has no PREMUL_SUM")
@pytest.mark.ranks(2)
def test_premul_sum_leaves_the_input_of_reduce_scatter_alone(world_size: int) -> None:
    whole = torch.ones(world_size * 5)
    dist.reduce_scatter_tensor(torch.empty(5), whole, dist._make_nccl_premul_sum(2.0))
    assert_bits(whole, torch.ones(world_size * 5))


@pytest.mark.beyond("gloo", "has no PREMUL_SUM")
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter", "coalesced"])
@pytest.mark.ranks(2)
def test_premul_sum_of_a_leaf_that_requires_a_gradient(world_size: int, collective: str) -> None:
    """As with other operations, the result is written whatever autograd thinks of the tensor."""
    op = dist._make_nccl_premul_sum(2.0)
    leaf = torch.nn.Parameter(torch.full((3,), float(dist.get_rank() + 1)))
    if collective == "all_reduce":
        dist.all_reduce(leaf, op)
    elif collective == "reduce":
        dist.reduce(leaf, 1, op)
    elif collective == "coalesced":
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = op
        dist.group.WORLD.allreduce_coalesced([leaf], options).wait()
    else:
        parts = [torch.full((3,), float(dist.get_rank() + 1)) for _ in range(world_size)]
        dist.reduce_scatter(leaf, parts, op)
    assert leaf.is_leaf
    assert leaf.requires_grad
    if collective != "reduce" or dist.get_rank() == 1:
        assert_bits(leaf.detach(), torch.full((3,), 6.0))
