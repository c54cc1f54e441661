"""Every reduction of every dtype: exact where it is exact, one rounding where it rounds."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import (
    COMPLEX,
    FEW,
    FP8,
    HALF,
    REAL,
    SIGNED,
    UNSIGNED,
    assert_bits,
    assert_close,
    blank,
    integers,
    payload,
    reals,
    wide,
)

SUM, PRODUCT = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT
MIN, MAX = dist.ReduceOp.MIN, dist.ReduceOp.MAX
BAND, BOR, BXOR = dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR

SIZES = (1, 5, 33, 1027, 70_001)
GLOO_DTYPES = [torch.uint8, torch.int8, torch.int32, torch.int64, *HALF, *REAL]


def dtypes(wanted: list[torch.dtype]) -> list[torch.dtype]:
    if dist.get_backend() == "gloo":
        return [d for d in wanted if d in GLOO_DTYPES]
    return wanted


def in_rank_order(parts: list[torch.Tensor], combine) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


# --- whole numbers, where every order gives the same result ---------------------------------------


@pytest.mark.ranks(2, 3, 4)
def test_sum_of_whole_numbers(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in dtypes([*SIGNED, *UNSIGNED, *HALF, *REAL, *FP8, *COMPLEX]):
        for size in SIZES:
            tensor = integers(me, size, dtype, size)
            dist.all_reduce(tensor, SUM)
            parts = [integers(r, size, dtype, size).to(wide(dtype)) for r in range(world_size)]
            assert_bits(tensor, in_rank_order(parts, torch.add).to(dtype), (dtype, size))


def factors(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """1, 2 or 3: the products of four ranks fit every dtype."""
    generator = torch.Generator().manual_seed(13 + rank)
    return torch.randint(1, 4, (size,), generator=generator).to(dtype)


@pytest.mark.ranks(*FEW, 4)
def test_product_of_whole_numbers(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in dtypes([*SIGNED, *UNSIGNED, *HALF, *REAL, *FP8]):
        tensor = factors(me, 1027, dtype)
        dist.all_reduce(tensor, PRODUCT)
        parts = [factors(r, 1027, dtype).to(wide(dtype)) for r in range(world_size)]
        assert_bits(tensor, in_rank_order(parts, torch.mul).to(dtype), dtype)


@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.ranks(*FEW, 4)
def test_minimum_and_maximum(world_size: int, op: str) -> None:
    me = dist.get_rank()
    combine = torch.minimum if op == "MIN" else torch.maximum
    for dtype in dtypes([*SIGNED, *UNSIGNED, *HALF, *REAL, *FP8]):
        for size in (1, 1027):
            make = reals if dtype.is_floating_point else payload
            tensor = make(me, size, dtype, 3)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            parts = [make(r, size, dtype, 3) for r in range(world_size)]
            # torch has no minimum for every unsigned and fp8 type; the wider ones keep the order
            # (uint64 as int64 with the sign bit flipped).
            if dtype is torch.uint64:
                flip = torch.tensor(-(2**63))
                kept = [p.view(torch.int64) ^ flip for p in parts]
                expected = (in_rank_order(kept, combine) ^ flip).view(torch.uint64)
            else:
                expected = in_rank_order([p.to(wide(dtype)) for p in parts], combine).to(dtype)
            assert_bits(tensor, expected, (dtype, size))


@pytest.mark.beyond("gloo", "its MIN and MAX depend on the order of the operands")
@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.ranks(*FEW)
def test_minimum_and_maximum_with_nan(world_size: int, op: str) -> None:
    """A NaN on any rank wins on all of them, as in torch.minimum."""
    for dtype in [*HALF, *REAL]:
        for at in range(world_size):
            tensor = torch.tensor([1.0, float(dist.get_rank()), 2.0], dtype=dtype)
            if dist.get_rank() == at:
                tensor[1] = float("nan")
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert tensor.isnan().tolist() == [False, True, False], (dtype, at, tensor)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
@pytest.mark.ranks(*FEW, 4)
def test_bitwise(world_size: int, op: str) -> None:
    me = dist.get_rank()
    combine = {
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    for dtype in dtypes([*SIGNED, *UNSIGNED]):
        for size in (1, 1027):
            tensor = payload(me, size, dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
            same = signed[tensor.element_size()]
            parts = [payload(r, size, dtype).view(same) for r in range(world_size)]
            assert_bits(tensor, in_rank_order(parts, combine).view(dtype), (dtype, size))


@pytest.mark.beyond("gloo", "its bools are bytes")
@pytest.mark.ranks(*FEW, 4)
def test_bools(world_size: int) -> None:
    """SUM and MAX are or, PRODUCT and MIN are and, BXOR is the parity; results are true bools."""
    me = dist.get_rank()
    parts = [payload(r, 1027, torch.bool) for r in range(world_size)]
    either, both = in_rank_order(parts, torch.logical_or), in_rank_order(parts, torch.logical_and)
    expected = {
        SUM: either,
        MAX: either,
        BOR: either,
        PRODUCT: both,
        MIN: both,
        BAND: both,
        BXOR: in_rank_order(parts, torch.logical_xor),
    }
    for op, result in expected.items():
        tensor = payload(me, 1027, torch.bool)
        dist.all_reduce(tensor, op)
        assert_bits(tensor, result, op)
        assert int(tensor.view(torch.uint8).max()) <= 1


@pytest.mark.beyond("gloo", "has no complex reductions of its own")
@pytest.mark.ranks(*FEW)
def test_complex_sum_and_product(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in COMPLEX:
        tensor = integers(me, 500, dtype)
        dist.all_reduce(tensor, SUM)
        parts = [integers(r, 500, dtype) for r in range(world_size)]
        assert_bits(tensor, in_rank_order(parts, torch.add), dtype)
        tensor = integers(me, 500, dtype)
        options = dist.AllreduceOptions()  # dist.all_reduce itself refuses complex products
        options.reduceOp = PRODUCT
        dist.group.WORLD.allreduce([tensor], options).wait()
        assert_close(tensor, in_rank_order(parts, torch.mul), dtype)


@pytest.mark.ranks(*FEW)
def test_complex_sum(world_size: int) -> None:
    tensor = torch.complex(torch.full((9,), 1.0 + dist.get_rank()), torch.full((9,), 2.0))
    dist.all_reduce(tensor)
    total = world_size * (world_size + 1) / 2
    expected = torch.complex(torch.full((9,), total), torch.full((9,), 2.0 * world_size))
    assert_bits(tensor, expected)


@pytest.mark.ranks(*FEW)
def test_integers_wrap_around(world_size: int) -> None:
    for dtype in dtypes([*SIGNED, *UNSIGNED]):
        top = torch.iinfo(dtype).max
        tensor = torch.tensor([top], dtype=dtype)
        dist.all_reduce(tensor)
        bits = torch.iinfo(dtype).bits
        value = top * world_size % 2**bits
        if torch.iinfo(dtype).min < 0 and value >= 2 ** (bits - 1):
            value -= 2**bits
        assert tensor.tolist() == [value], dtype


# --- rounding ------------------------------------------------------------------------------------


@pytest.mark.beyond("gloo", "rounds after every addition")
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.ranks(*FEW, 4, 5)
def test_sixteen_bit_sums_round_once(world_size: int, collective: str) -> None:
    """The sum is the fp32 sum, rounded to 16 bits a single time.

    Orders of fp32 additions differ in the last fp32 bit, which can tip a rounding: every element
    must be one of the two neighbours of the exact sum, and all but a few the nearest.
    """
    me = dist.get_rank()
    for dtype in HALF:
        for size in (1, 300, 40_003):
            parts = [reals(r, size * world_size, dtype) for r in range(world_size)]
            tensor = parts[me].clone()
            if collective == "all_reduce":
                dist.all_reduce(tensor)
                part = slice(None)
            elif collective == "reduce":
                dist.reduce(tensor, 0)
                part = slice(None) if me == 0 else slice(0, 0)
                tensor = tensor[part]
            else:
                whole, tensor = tensor, blank(size, dtype)
                dist.reduce_scatter_tensor(tensor, whole)
                part = slice(me * size, (me + 1) * size)
            exact = sum(p.double() for p in parts)[part]
            nearest = exact.to(dtype)
            error = (tensor.double() - exact).abs()
            best = (nearest.double() - exact).abs()
            wrong = error > best
            # A tipped rounding is off the best by a few fp32 roundings of the largest partial sum.
            slack = 4 * world_size * 2.0**-24 * sum(p.double().abs() for p in parts)[part]
            assert (error <= best + slack).all(), (dtype, size, (error - best).max())
            assert wrong.sum() <= max(1, size * world_size // 100), (dtype, int(wrong.sum()))


@pytest.mark.beyond("gloo", "rounds after every addition")
@pytest.mark.ranks(3, 4, 5)
def test_small_addends_are_not_lost_in_bfloat16(world_size: int) -> None:
    """1 + eps/2 + eps/2 is 1 when rounded after each addition and 1 + eps when rounded once."""
    me = dist.get_rank()
    for dtype in HALF:
        half_eps = torch.finfo(dtype).eps / 2
        for one_at in range(world_size):
            tensor = torch.full((100,), 1.0 if me == one_at else half_eps, dtype=dtype)
            dist.all_reduce(tensor)
            expected = torch.tensor(1.0 + (world_size - 1) * half_eps).to(dtype)
            assert_bits(tensor, expected.expand(100).contiguous(), (dtype, one_at))


@pytest.mark.beyond("gloo", "has no fp8")
@pytest.mark.ranks(*FEW, 4)
def test_fp8_accumulates_in_fp32(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in FP8:
        parts = [(reals(r, 2000, torch.float32) * 4).to(dtype) for r in range(world_size)]
        tensor = parts[me].clone()
        dist.all_reduce(tensor)
        assert_bits(tensor, sum(p.float() for p in parts).to(dtype), dtype)


@pytest.mark.ranks(*FEW, 4, 5)
def test_floats_are_as_close_as_some_order_of_summation(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in REAL:
        for size in (1, 1000, 70_001):
            parts = [reals(r, size, dtype, 5) for r in range(world_size)]
            tensor = parts[me].clone()
            dist.all_reduce(tensor)
            exact = sum(p.double() for p in parts)
            bound = sum(p.double().abs() for p in parts) * torch.finfo(dtype).eps * world_size
            assert ((tensor.double() - exact).abs() <= bound).all(), (dtype, size)


@pytest.mark.ranks(*FEW)
def test_infinities_and_nans_go_through(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in dtypes([*HALF, *REAL]):
        tensor = torch.tensor([float("inf"), 1.0, float("nan") if me == 1 else 0.0], dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor[0] == float("inf")
        assert tensor[1] == world_size
        assert tensor[2].isnan()


@pytest.mark.ranks(2)
def test_overflow_of_half_is_infinite() -> None:
    tensor = torch.full((10,), 60000.0, dtype=torch.float16)
    dist.all_reduce(tensor)
    assert tensor.isinf().all()


# --- the other collectives that reduce -----------------------------------------------------------


@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "MAX"])
@pytest.mark.ranks(*FEW, 4)
def test_reduce_and_reduce_scatter_take_the_same_ops(world_size: int, op: str) -> None:
    me = dist.get_rank()
    combine = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}
    reduce_op = getattr(dist.ReduceOp, op)
    for dtype in (torch.int32, torch.float32):
        parts = [integers(r, 37 * world_size, dtype, 6) for r in range(world_size)]
        expected = in_rank_order(parts, combine[op])
        tensor = parts[me].clone()
        dist.reduce(tensor, world_size - 1, reduce_op)
        if me == world_size - 1:
            assert torch.equal(tensor, expected), (op, dtype)
        output = blank(37, dtype)
        dist.reduce_scatter_tensor(output, parts[me], reduce_op)
        assert torch.equal(output, expected[37 * me : 37 * (me + 1)]), (op, dtype)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["MIN", "MAX", "BAND", "BOR", "BXOR"])
@pytest.mark.ranks(2)
def test_no_order_and_no_bits_of_complex_numbers(op: str) -> None:
    """c10d's words: "all_reduce does not support ReduceOp.MAX on complex tensors"."""
    tensor = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="all_reduce does not support"):
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
    with pytest.raises((RuntimeError, ValueError)):
        dist.reduce_scatter_tensor(tensor[:1], tensor[:2], getattr(dist.ReduceOp, op))
    dist.barrier()


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
@pytest.mark.ranks(2)
def test_no_bitwise_operations_on_floats(op: str) -> None:
    """c10d's words, as in ProcessGroupGloo: "Cannot use ReduceOp.BAND with non-integral dtype"."""
    for dtype in [*HALF, *REAL]:
        with pytest.raises((RuntimeError, ValueError), match="with non-integral dtype"):
            dist.all_reduce(torch.ones(3, dtype=dtype), getattr(dist.ReduceOp, op))
    dist.barrier()


@pytest.mark.ranks(2)
def test_the_group_still_works_after_a_refusal(world_size: int) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(torch.ones(3), BAND)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((3,), float(world_size)))
