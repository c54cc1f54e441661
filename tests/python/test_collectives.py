"""Every collective over sizes, dtypes and layouts; values checked on every rank."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from values import (
    SIZES,
    assert_bits,
    blank,
    integers,
    moved_dtypes,
    payload,
    strided,
    transposed,
)

WORLDS = (1, 2, 3, 4, 5)
FEW = (2, 3)
f32 = torch.float32


def sum_of(world_size: int, shape, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    total = integers(0, shape, dtype, salt).clone()
    for rank in range(1, world_size):
        total += integers(rank, shape, dtype, salt)
    return total


# --- broadcast ---------------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_broadcast_sizes(world_size: int) -> None:
    for root in range(world_size):
        for size in SIZES:
            tensor = payload(dist.get_rank(), size, f32, salt=size)
            dist.broadcast(tensor, root)
            assert_bits(tensor, payload(root, size, f32, salt=size), (root, size))


@pytest.mark.ranks(2, 3)
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
@pytest.mark.ranks(2, 3, 4)
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


# --- barriers ----------------------------------------------------------------------------------


@pytest.mark.ranks(*WORLDS)
def test_barrier_holds_everybody(world_size: int) -> None:
    for late in range(world_size):
        dist.barrier()
        if dist.get_rank() == late:
            time.sleep(0.1)
        entered = time.monotonic()
        dist.barrier()
        left = time.monotonic()
        times: list = [None] * world_size
        dist.all_gather_object(times, (entered, left))
        assert min(t[1] for t in times) >= max(t[0] for t in times), (late, times)


@pytest.mark.ranks(2, 3)
def test_barrier_async() -> None:
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()


@pytest.mark.ranks(*WORLDS)
def test_monitored_barrier(backend: str) -> None:
    barrier = _monitored_barrier(backend)
    barrier()
    barrier(wait_all_ranks=True)


@pytest.mark.ranks(3, fresh=True)
def test_monitored_barrier_names_the_absent(backend: str) -> None:
    from datetime import timedelta

    if dist.get_rank() == 2:
        time.sleep(2.5)
        return
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)rank 2"):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1))
    else:
        with pytest.raises(RuntimeError):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1))


@pytest.mark.ranks(4, fresh=True)
def test_monitored_barrier_names_all_absent(backend: str) -> None:
    from datetime import timedelta

    if dist.get_rank() in (1, 3):
        time.sleep(2.5)
        return
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)ranks? 1, 3"):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1), wait_all_ranks=True)
    else:
        with pytest.raises(RuntimeError):
            _monitored_barrier(backend)(timeout=timedelta(seconds=1), wait_all_ranks=True)


def _monitored_barrier(backend: str):
    if backend == "gloo":
        return dist.monitored_barrier
    import q7x2

    return q7x2.monitored_barrier


# --- several tensors, coalescing, sparse -------------------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.filterwarnings("ignore")
def test_all_reduce_coalesced(world_size: int) -> None:
    shapes = [(3,), (4, 5), (), (0,), (70_000,)]
    tensors = [integers(dist.get_rank(), s, f32, salt=i) for i, s in enumerate(shapes)]
    dist.all_reduce_coalesced(tensors)
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, shapes[i], f32, salt=i), i)


@pytest.mark.ranks(2, 3)
def test_coalescing_manager_all_reduce(world_size: int) -> None:
    """torch turns these into one allreduce_coalesced."""
    shapes = [(3,), (4, 5), (1000,)]
    tensors = [integers(dist.get_rank(), s, f32, salt=i) for i, s in enumerate(shapes)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, shapes[i], f32, salt=i), i)


@pytest.mark.ranks(2, 3)
def test_coalescing_manager_all_reduce_async(world_size: int) -> None:
    tensors = [integers(dist.get_rank(), 100, f32, salt=i) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, sum_of(world_size, 100, f32, salt=i), i)


@pytest.mark.ranks(2, 3)
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


@pytest.mark.ranks(2, 3)
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
@pytest.mark.ranks(2, 3)
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
@pytest.mark.ranks(2, 3)
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


@pytest.mark.ranks(1, 2, 3)
def test_all_reduce_of_several_tensors_per_rank(world_size: int) -> None:
    """As Gloo: every tensor of every rank is summed and every tensor gets the sum."""
    me = dist.get_rank()
    tensors = [integers(me, 40, f32, salt=i) for i in range(3)]
    dist.group.WORLD.allreduce(tensors).wait()
    expected = sum(sum_of(world_size, 40, f32, salt=i) for i in range(3))
    for tensor in tensors:
        assert_bits(tensor, expected)


@pytest.mark.ranks(2, 3)
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


@pytest.mark.ranks(2, 3)
def test_all_gather_of_several_tensors_per_rank(world_size: int) -> None:
    """As Gloo: each output list gets the inputs of all ranks, rank by rank."""
    me = dist.get_rank()
    inputs = [payload(me, 9, f32, salt=i) for i in range(2)]
    outputs = [[blank(9, f32) for _ in range(2 * world_size)] for _ in range(2)]
    dist.group.WORLD.allgather(outputs, inputs).wait()
    for tensors in outputs:
        for i, tensor in enumerate(tensors):
            assert_bits(tensor, payload(i // 2, 9, f32, salt=i % 2), i)


def _sparse(rank: int, world_size: int, dense: tuple[int, ...]) -> torch.Tensor:
    """Rows rank, rank + 1 and 0 of world_size + 2 rows, the last two coalescible."""
    rows = torch.tensor([[rank, rank + 1, 0, 0]])
    values = integers(rank, (4, *dense), f32)
    return torch.sparse_coo_tensor(rows, values, (world_size + 2, *dense))


@pytest.mark.parametrize("dense", [(), (3,), (2, 5)])
@pytest.mark.ranks(1, 2, 3)
def test_all_reduce_sparse(world_size: int, dense) -> None:
    tensor = _sparse(dist.get_rank(), world_size, dense).coalesce()
    dist.all_reduce(tensor)
    expected = sum(_sparse(r, world_size, dense).to_dense() for r in range(world_size))
    assert tensor.is_sparse
    assert tensor.is_coalesced()
    assert_bits(tensor.to_dense(), expected)


@pytest.mark.ranks(2, 3)
def test_all_reduce_sparse_with_nothing_on_a_rank(world_size: int) -> None:
    me = dist.get_rank()
    tensor = _sparse(me, world_size, (3,)).coalesce()
    if me == 1:
        tensor = torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.long), torch.empty(0, 3), (world_size + 2, 3)
        ).coalesce()
    dist.all_reduce(tensor)
    parts = [_sparse(r, world_size, (3,)).to_dense() for r in range(world_size) if r != 1]
    assert_bits(tensor.to_dense(), sum(parts))


@pytest.mark.ranks(2, 3)
def test_all_reduce_sparse_two_sparse_dimensions(world_size: int) -> None:
    me = dist.get_rank()

    def of(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[0, rank], [rank, 1]], [1.0, 2.0], (4, 4))

    tensor = of(me).coalesce()
    dist.all_reduce(tensor)
    assert_bits(tensor.to_dense(), sum(of(r).to_dense() for r in range(world_size)))


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


@pytest.mark.ranks(2, 3)
def test_send_and_receive_objects(world_size: int) -> None:
    if dist.get_rank() == 0:
        dist.send_object_list([1, "two", {"three": 3}], dst=1)
    elif dist.get_rank() == 1:
        objects: list = [None] * 3
        dist.recv_object_list(objects, src=0)
        assert objects == [1, "two", {"three": 3}]


# --- order and mixture -------------------------------------------------------------------------


@pytest.mark.ranks(2, 3, 4)
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


@pytest.mark.slow
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
