"""all_reduce, reduce and reduce_scatter over sizes and layouts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import (
    FEW,
    SIZES,
    WORLDS,
    assert_bits,
    blank,
    f32,
    integers,
    strided,
    sum_of,
    transposed,
)

# --- all_reduce, reduce ------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_all_reduce_sizes(world_size: int) -> None:
    for size in [*SIZES, 300_001]:
        tensor = integers(dist.get_rank(), size, f32, salt=size)
        dist.all_reduce(tensor)
        assert_bits(tensor, sum_of(world_size, size, f32, salt=size), size)


@pytest.mark.ranks(2, 4)
def test_all_reduce_megabytes(world_size: int) -> None:
    for size in (1 << 20, (1 << 22) + 3):
        tensor = integers(dist.get_rank(), size, f32)
        dist.all_reduce(tensor)
        assert_bits(tensor, sum_of(world_size, size, f32), size)


@pytest.mark.ranks(*FEW)
def test_all_reduce_zero_dimensional(world_size: int) -> None:
    tensor = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.tensor(world_size * (world_size + 1) // 2))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.parametrize("layout", [strided, transposed])
@pytest.mark.ranks(*FEW)
def test_all_reduce_not_contiguous(world_size: int, layout) -> None:
    tensor = layout(integers(dist.get_rank(), (65, 129), f32))
    dist.all_reduce(tensor)
    assert_bits(tensor, sum_of(world_size, (65, 129), f32))


@pytest.mark.ranks(*FEW)
def test_all_reduce_in_the_middle_of_a_buffer(world_size: int) -> None:
    """Offsets that are not aligned to vectors, and neighbours that must not be touched."""
    for offset in (1, 3, 5):
        for size in (1, 30, 4099):
            buffer = torch.full((size + 16,), -7.0)
            buffer[offset : offset + size] = integers(dist.get_rank(), size, f32)
            dist.all_reduce(buffer[offset : offset + size])
            assert_bits(buffer[offset : offset + size], sum_of(world_size, size, f32))
            assert (buffer[:offset] == -7).all()
            assert (buffer[offset + size :] == -7).all()


@pytest.mark.ranks(*WORLDS)
def test_reduce_to_each_root(world_size: int) -> None:
    for root in range(world_size):
        for size in SIZES:
            tensor = integers(dist.get_rank(), size, f32, salt=root)
            dist.reduce(tensor, root)
            if dist.get_rank() == root:
                assert_bits(tensor, sum_of(world_size, size, f32, salt=root), (root, size))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.parametrize("layout", [strided, transposed])
@pytest.mark.ranks(*FEW)
def test_reduce_not_contiguous(world_size: int, layout) -> None:
    tensor = layout(integers(dist.get_rank(), (12, 31), f32))
    dist.reduce(tensor, 1)
    if dist.get_rank() == 1:
        assert_bits(tensor, sum_of(world_size, (12, 31), f32))


# --- reduce_scatter ----------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_reduce_scatter_sizes(world_size: int) -> None:
    me = dist.get_rank()
    for size in SIZES:
        inputs = [integers(me, size, f32, salt=part) for part in range(world_size)]
        kept = [tensor.clone() for tensor in inputs]
        output = blank(size, f32)
        dist.reduce_scatter(output, inputs)
        assert_bits(output, sum_of(world_size, size, f32, salt=me), size)
        for tensor, before in zip(inputs, kept, strict=True):
            assert_bits(tensor, before, ("an input changed", size))


@pytest.mark.ranks(*WORLDS)
def test_reduce_scatter_tensor(world_size: int) -> None:
    me = dist.get_rank()
    for size in SIZES:
        joined = torch.cat([integers(me, size, f32, salt=part) for part in range(world_size)])
        kept = joined.clone()
        expected = sum_of(world_size, size, f32, salt=me)
        output = blank(size, f32)
        dist.reduce_scatter_tensor(output, joined)
        assert_bits(output, expected, ("concatenated", size))
        assert_bits(joined, kept, ("the input changed", size))
        if dist.get_backend() == "gloo":
            continue  # it knows the concatenated form only
        output = blank(size, f32)
        dist.reduce_scatter_tensor(output, joined.reshape(world_size, size))
        assert_bits(output, expected, ("stacked", size))


@pytest.mark.ranks(*FEW)
def test_reduce_scatter_tensor_in_place(world_size: int) -> None:
    """The output is this rank's part of the input."""
    size = 517
    me = dist.get_rank()
    joined = torch.cat([integers(me, size, f32, salt=part) for part in range(world_size)])
    output = joined[me * size : (me + 1) * size]
    dist.reduce_scatter_tensor(output, joined)
    assert_bits(output, sum_of(world_size, size, f32, salt=me))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(*FEW)
def test_reduce_scatter_not_contiguous(world_size: int) -> None:
    me = dist.get_rank()
    inputs = [strided(integers(me, (5, 6), f32, salt=part)) for part in range(world_size)]
    output = transposed(torch.zeros(5, 6))
    dist.reduce_scatter(output, inputs)
    assert_bits(output, sum_of(world_size, (5, 6), f32, salt=me))
