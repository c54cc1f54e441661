"""Broadcast, all_gather, gather, scatter and all_to_all over sizes, dtypes and layouts."""

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
    moved_dtypes,
    payload,
    strided,
    transposed,
)

# --- broadcast ---------------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_broadcast_sizes(world_size: int) -> None:
    for root in range(world_size):
        for size in SIZES:
            tensor = payload(dist.get_rank(), size, f32, salt=size)
            dist.broadcast(tensor, root)
            assert_bits(tensor, payload(root, size, f32, salt=size), (root, size))


@pytest.mark.ranks(*FEW)
def test_broadcast_dtypes(world_size: int) -> None:
    for dtype in moved_dtypes():
        tensor = payload(dist.get_rank(), (5, 11), dtype)
        dist.broadcast(tensor, world_size - 1)
        assert_bits(tensor, payload(world_size - 1, (5, 11), dtype), dtype)


@pytest.mark.ranks(*FEW)
def test_broadcast_zero_dimensional() -> None:
    tensor = torch.tensor(float(dist.get_rank() + 3))
    dist.broadcast(tensor, 1)
    assert_bits(tensor, torch.tensor(4.0))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.parametrize("layout", [strided, transposed])
@pytest.mark.ranks(*FEW)
def test_broadcast_not_contiguous(layout) -> None:
    tensor = layout(payload(dist.get_rank(), (33, 7), f32))
    dist.broadcast(tensor, 0)
    assert_bits(tensor, payload(0, (33, 7), f32))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(*FEW)
def test_gaps_of_a_strided_tensor_are_left_alone() -> None:
    buffer = torch.zeros(100, 2)
    buffer[:, 0] = dist.get_rank()
    buffer[:, 1] = -5
    dist.broadcast(buffer[:, 0], 1)
    assert_bits(buffer[:, 0].contiguous(), torch.full((100,), 1.0))
    assert_bits(buffer[:, 1].contiguous(), torch.full((100,), -5.0))


# --- all_gather --------------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_all_gather_sizes(world_size: int) -> None:
    for size in SIZES:
        outputs = [blank(size, f32) for _ in range(world_size)]
        dist.all_gather(outputs, payload(dist.get_rank(), size, f32, salt=size))
        for rank, output in enumerate(outputs):
            assert_bits(output, payload(rank, size, f32, salt=size), (rank, size))


@pytest.mark.ranks(*FEW)
def test_all_gather_dtypes(world_size: int) -> None:
    for dtype in moved_dtypes():
        outputs = [blank((3, 5), dtype) for _ in range(world_size)]
        dist.all_gather(outputs, payload(dist.get_rank(), (3, 5), dtype))
        for rank, output in enumerate(outputs):
            assert_bits(output, payload(rank, (3, 5), dtype), (rank, dtype))


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(*FEW)
def test_all_gather_not_contiguous(world_size: int) -> None:
    outputs = [transposed(torch.zeros(6, 9)) for _ in range(world_size)]
    outputs[0] = strided(torch.zeros(6, 9))
    dist.all_gather(outputs, transposed(payload(dist.get_rank(), (6, 9), f32)))
    for rank, output in enumerate(outputs):
        assert_bits(output, payload(rank, (6, 9), f32), rank)


@pytest.mark.beyond("gloo", "gathers equal sizes only")
@pytest.mark.ranks(*FEW, 4)
def test_all_gather_uneven(world_size: int) -> None:
    """torch's documentation: "Complex and uneven sized tensors are supported"."""
    for base in (0, 1, 1000):
        outputs = [blank(base + 3 * rank, f32) for rank in range(world_size)]
        me = dist.get_rank()
        dist.all_gather(outputs, payload(me, base + 3 * me, f32))
        for rank, output in enumerate(outputs):
            assert_bits(output, payload(rank, base + 3 * rank, f32), (rank, base))


@pytest.mark.ranks(*WORLDS)
def test_all_gather_into_tensor(world_size: int) -> None:
    for size in SIZES:
        mine = payload(dist.get_rank(), (size, 2), f32, salt=size)
        expected = torch.cat([payload(r, (size, 2), f32, salt=size) for r in range(world_size)])
        joined = blank((world_size * size, 2), f32)
        dist.all_gather_into_tensor(joined, mine)
        assert_bits(joined, expected, ("concatenated", size))
        if dist.get_backend() == "gloo":
            continue  # it knows the concatenated form only
        stacked = blank((world_size, size, 2), f32)
        dist.all_gather_into_tensor(stacked, mine)
        assert_bits(stacked, expected.reshape(world_size, size, 2), ("stacked", size))


@pytest.mark.ranks(*FEW)
def test_all_gather_into_tensor_in_place(world_size: int) -> None:
    """The input is this rank's part of the output, as FSDP calls it."""
    size = 1031
    output = blank(world_size * size, f32)
    me = dist.get_rank()
    mine = output[me * size : (me + 1) * size]
    mine.copy_(payload(me, size, f32))
    dist.all_gather_into_tensor(output, mine)
    expected = torch.cat([payload(r, size, f32) for r in range(world_size)])
    assert_bits(output, expected)


@pytest.mark.ranks(*FEW)
@pytest.mark.filterwarnings("ignore")
def test_all_gather_coalesced(world_size: int) -> None:
    shapes = [(3,), (4, 5), (), (0,), (1000,)]
    mine = [payload(dist.get_rank(), s, f32, salt=i) for i, s in enumerate(shapes)]
    outputs = [[blank(s, f32) for s in shapes] for _ in range(world_size)]
    dist.all_gather_coalesced(outputs, mine)
    for rank, tensors in enumerate(outputs):
        for i, tensor in enumerate(tensors):
            assert_bits(tensor, payload(rank, shapes[i], f32, salt=i), (rank, i))


# --- gather, scatter ---------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_gather_to_each_root(world_size: int) -> None:
    for root in range(world_size):
        for size in SIZES:
            outputs = None
            if dist.get_rank() == root:
                outputs = [blank(size, f32) for _ in range(world_size)]
            dist.gather(payload(dist.get_rank(), size, f32, salt=root), outputs, dst=root)
            for rank, output in enumerate(outputs or []):
                assert_bits(output, payload(rank, size, f32, salt=root), (root, rank, size))


@pytest.mark.ranks(*WORLDS)
def test_scatter_from_each_root(world_size: int) -> None:
    for root in range(world_size):
        for size in SIZES:
            inputs = None
            if dist.get_rank() == root:
                inputs = [payload(r, size, f32, salt=root) for r in range(world_size)]
            output = blank(size, f32)
            dist.scatter(output, inputs, src=root)
            assert_bits(output, payload(dist.get_rank(), size, f32, salt=root), (root, size))


@pytest.mark.ranks(*FEW)
def test_gather_and_scatter_dtypes(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in moved_dtypes():
        outputs = [blank(9, dtype) for _ in range(world_size)] if me == 0 else None
        dist.gather(payload(me, 9, dtype), outputs, dst=0)
        for rank, output in enumerate(outputs or []):
            assert_bits(output, payload(rank, 9, dtype), (rank, dtype))
        inputs = [payload(r, 9, dtype, 1) for r in range(world_size)] if me == 1 else None
        output = blank(9, dtype)
        dist.scatter(output, inputs, src=1)
        assert_bits(output, payload(me, 9, dtype, 1), dtype)


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(*FEW)
def test_gather_and_scatter_not_contiguous(world_size: int) -> None:
    me = dist.get_rank()
    shape = (8, 3)
    outputs = [transposed(torch.zeros(shape)) for _ in range(world_size)] if me == 1 else None
    dist.gather(strided(payload(me, shape, f32)), outputs, dst=1)
    for rank, output in enumerate(outputs or []):
        assert_bits(output, payload(rank, shape, f32), rank)
    inputs = [strided(payload(r, shape, f32, 1)) for r in range(world_size)] if me == 0 else None
    output = transposed(torch.zeros(shape))
    dist.scatter(output, inputs, src=0)
    assert_bits(output, payload(me, shape, f32, 1))


# --- all_to_all --------------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_all_to_all_single_even(world_size: int) -> None:
    me = dist.get_rank()
    for size in SIZES:
        sent = torch.cat([payload(me, size, f32, salt=to) for to in range(world_size)])
        output = blank(world_size * size, f32)
        dist.all_to_all_single(output, sent)
        expected = torch.cat([payload(r, size, f32, salt=me) for r in range(world_size)])
        assert_bits(output, expected, size)


@pytest.mark.ranks(*WORLDS)
def test_all_to_all_single_uneven(world_size: int) -> None:
    """Rank i sends (i + 2 j) % 4 rows to rank j, times a factor; some splits are empty."""
    me = dist.get_rank()

    def rows(source: int, target: int, factor: int) -> int:
        return ((source + 2 * target) % 4) * factor

    for factor in (1, 3, 500):
        send = [rows(me, to, factor) for to in range(world_size)]
        receive = [rows(source, me, factor) for source in range(world_size)]
        sent = torch.cat([payload(me, (n, 3), f32, salt=to) for to, n in enumerate(send)])
        output = blank((sum(receive), 3), f32)
        dist.all_to_all_single(output, sent, receive, send)
        expected = torch.cat([payload(r, (n, 3), f32, salt=me) for r, n in enumerate(receive)])
        assert_bits(output, expected, factor)


@pytest.mark.ranks(*FEW)
def test_all_to_all_single_dtypes(world_size: int) -> None:
    me = dist.get_rank()
    for dtype in moved_dtypes():
        sent = torch.cat([payload(me, 6, dtype, salt=to) for to in range(world_size)])
        output = blank(world_size * 6, dtype)
        dist.all_to_all_single(output, sent)
        expected = torch.cat([payload(r, 6, dtype, salt=me) for r in range(world_size)])
        assert_bits(output, expected, dtype)


@pytest.mark.beyond("gloo", "has no alltoall of lists")
@pytest.mark.ranks(*WORLDS)
def test_all_to_all_lists(world_size: int) -> None:
    me = dist.get_rank()
    for base in (0, 1, 77, 5000):
        inputs = [payload(me, base + me + 2 * to, f32, salt=to) for to in range(world_size)]
        outputs = [blank(base + source + 2 * me, f32) for source in range(world_size)]
        dist.all_to_all(outputs, inputs)
        for source, output in enumerate(outputs):
            expected = payload(source, base + source + 2 * me, f32, salt=me)
            assert_bits(output, expected, (source, base))


@pytest.mark.beyond("gloo", "has no alltoall of lists")
@pytest.mark.ranks(*FEW)
def test_all_to_all_not_contiguous(world_size: int) -> None:
    me = dist.get_rank()
    inputs = [strided(payload(me, (4, 4), f32, salt=to)) for to in range(world_size)]
    outputs = [transposed(torch.zeros(4, 4)) for _ in range(world_size)]
    dist.all_to_all(outputs, inputs)
    for source, output in enumerate(outputs):
        assert_bits(output, payload(source, (4, 4), f32, salt=me), source)
