"""All-reduces that leave out blocks of zeros: ``q7x2.all_reduce(tensor, codec="blocks")``."""

from __future__ import annotations

import re

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import FEW, assert_bits, assert_same_on_all_ranks

BLOCK = 1024  # bytes


def _tensor(rank: int, numel: int, dtype: torch.dtype, zeros: float = 0.7) -> torch.Tensor:
    """Small whole numbers, halves and negative zeros, in some blocks of this rank."""
    generator = torch.Generator().manual_seed(100 * rank + numel)
    values = torch.randint(-9, 9, (numel,), generator=generator).double()
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.where(values == 0, -0.0, values / 2)
    tensor = values.to(dtype)
    in_block = BLOCK // tensor.element_size()
    for begin in range(0, numel, in_block):
        if float(torch.rand((), generator=generator)) < zeros:
            tensor[begin : begin + in_block] = 0
    return tensor


def _in_rank_order(numel: int, dtype: torch.dtype, world_size: int) -> torch.Tensor:
    total = _tensor(0, numel, dtype)
    for rank in range(1, world_size):
        total = total + _tensor(rank, numel, dtype)
    return total


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.complex64],
)
@pytest.mark.ranks(1, *FEW)
def test_blocks_give_the_bits_of_the_sum_in_rank_order(world_size: int, dtype) -> None:
    for numel in (0, 1, 257, 50_001):
        tensor = _tensor(dist.get_rank(), numel, dtype)
        q7x2.all_reduce(tensor, codec="blocks")
        assert_bits(tensor, _in_rank_order(numel, dtype, world_size))


@pytest.mark.ranks(2)
def test_blocks_of_other_tensors(world_size: int) -> None:
    me = dist.get_rank()
    # Averages, lists, in the background, memory that is not contiguous.
    mean, strided = _tensor(me, 5_000, torch.float32), _tensor(me, 6_000, torch.float32)
    strided = strided.view(60, 100).t()
    assert q7x2.all_reduce(mean, codec="blocks", op=dist.ReduceOp.AVG) is None
    assert_bits(mean, _in_rank_order(5_000, torch.float32, world_size) / world_size)
    other = _tensor(me, 5_000, torch.int64)
    work = q7x2.all_reduce([strided, other], codec="blocks", async_op=True)
    work.wait()
    assert_bits(strided, _in_rank_order(6_000, torch.float32, world_size).view(60, 100).t())
    assert_bits(other, _in_rank_order(5_000, torch.int64, world_size))
    nan = torch.zeros(5_000)
    nan[me] = float("nan")
    q7x2.all_reduce(nan, codec="blocks")
    assert nan.isnan().sum() == 2


@pytest.mark.ranks(2)
def test_blocks_refuse_what_they_cannot_do() -> None:
    tensor = torch.ones(1_000)
    for text, options in {
        "takes no residual": {"residual": torch.zeros(1_000)},
        "SUM or an AVG": {"op": dist.ReduceOp.MAX},
        "nonfinite must be": {"nonfinite": "error"},
        "has no edges to choose": {"edges": "host"},
    }.items():
        with pytest.raises(RuntimeError, match=text):
            q7x2.all_reduce(tensor, codec="blocks", **options)
    with pytest.raises(RuntimeError, match=r"(?i)dense|sparse|layout"):
        q7x2.all_reduce(torch.eye(3).to_sparse(), codec="blocks")
    q7x2.all_reduce(tensor, codec="blocks")
    assert_bits(tensor, torch.full((1_000,), 2.0))


@pytest.mark.ranks(2, fresh=True)
def test_ranks_with_other_lengths_are_told() -> None:
    tensor = torch.ones(1_000 + dist.get_rank())
    with pytest.raises(dist.DistBackendError) as error:
        q7x2.all_reduce(tensor, codec="blocks")
    assert re.search("4000 bytes.*4004 bytes|4004 bytes.*4000 bytes", str(error.value))


@pytest.mark.ranks(2)
def test_the_ledger_names_the_algorithm() -> None:
    tensor = torch.ones(1_000)
    q7x2.all_reduce(tensor, codec="blocks")
    dist.all_reduce(torch.eye(4).to_sparse())
    plans = [entry["q7x2"].get("plan") for entry in q7x2.flight_recorder()]
    assert "blocks" in plans
    assert "sparse_rows" in plans
    assert_same_on_all_ranks([tensor])
