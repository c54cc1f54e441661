"""What a Work promises: progress without a waiter, timeouts, results, errors, pieces."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from deadlines import shorten_timeout
from harness import wait_until
from values import FEW, Signals, assert_bits, f32, integers, meet, payload


@pytest.mark.parametrize("size", [10, 100_000, 4 << 20])
@pytest.mark.ranks(*FEW)
def test_advances_while_everybody_sleeps(world_size: int, size: int) -> None:
    """No rank waits or polls through c10d: only the backend's own progress can finish it."""
    me = dist.get_rank()
    tensor = integers(me, size, f32)
    expected = sum(integers(r, size, f32) for r in range(world_size))
    dist.barrier()
    work = dist.all_reduce(tensor, async_op=True)
    wait_until(lambda: torch.equal(tensor, expected))
    work.wait()


def compute() -> int:
    """Keep the interpreter busy for some milliseconds."""
    return sum(range(200_000))


@pytest.mark.ranks(2)
def test_advances_while_python_computes() -> None:
    """A busy interpreter that holds the GIL does not stop the operation."""
    me = dist.get_rank()
    size = 1 << 20
    tensor = integers(me, size, f32)
    expected = sum(integers(r, size, f32) for r in range(2))
    dist.barrier()
    work = dist.all_reduce(tensor, async_op=True)
    while not torch.equal(tensor, expected):
        compute()
    work.wait()


@pytest.mark.ranks(2)
def test_advances_while_the_other_rank_computes() -> None:
    """Rank 1 only starts its part, and computes until rank 0 has the result."""
    signals = Signals()
    tensor = torch.ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        work.wait()
        assert tensor[-1] == 2
        signals.give("rank 0 has the result")
    else:
        while not signals.is_given("rank 0 has the result"):
            compute()
        work.wait()


@pytest.mark.ranks(2)
def test_wait_with_a_timeout() -> None:
    tensor = torch.ones(10)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            work.wait(timedelta(seconds=0.3))
        meet()
    else:
        meet()
        work = dist.all_reduce(tensor, async_op=True)
    if dist.get_backend() != "gloo":  # Gloo's work is lost with its first timeout
        work.wait()
        assert_bits(tensor, torch.full((10,), 2.0))


# Before 2.13 torch's binding of Work.exception raises a TypeError.
EXCEPTIONS_CONVERT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


@pytest.mark.ranks(2)
def test_wait_returns_true() -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    if EXCEPTIONS_CONVERT:
        assert work.exception() is None
    work.synchronize()


@pytest.mark.ranks(2)
def test_wait_twice_and_from_two_threads() -> None:
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, async_op=True)
    results = []
    threads = [threading.Thread(target=lambda: results.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert work.wait() is True


@pytest.mark.ranks(2)
def test_is_completed_is_false_before_the_other_rank_came() -> None:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        for _ in range(10):
            assert not work.is_completed()
            time.sleep(0.01)  # rank 1 is late
        meet()
    else:
        meet()
        work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()


@pytest.mark.ranks(2)
def test_result() -> None:
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    (result,) = work.result()
    assert result.data_ptr() == tensor.data_ptr()


@pytest.mark.beyond("gloo", "does not time its works")
@pytest.mark.ranks(2)
def test_duration() -> None:
    """Milliseconds, once timing is enabled for the group."""
    group = dist.new_group()
    group._enable_collectives_timing()
    if dist.get_rank() == 1:
        meet()
        dist.all_reduce(torch.ones(10), group=group)
        return
    before = time.monotonic()
    work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
    begun = time.monotonic()
    time.sleep(0.05)  # rank 1 is late
    late = time.monotonic()
    meet()
    work.wait()
    after = time.monotonic()
    assert 1000 * (late - begun) <= work._get_duration() <= 1000 * (after - before)


@pytest.mark.ranks(2)
def test_destroyed_works_do_not_cancel_their_operation(world_size: int) -> None:
    me = dist.get_rank()
    tensors = [integers(me, n, f32, n) for n in (5, 1000, 1 << 20)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    gc.collect()
    dist.barrier()
    for tensor in tensors:
        n = tensor.numel()
        expected = sum(integers(r, n, f32, n) for r in range(world_size))
        wait_until(lambda t=tensor, e=expected: torch.equal(t, e))


@pytest.mark.ranks(2)
def test_tensors_live_as_long_as_their_operation() -> None:
    """The caller drops the tensors; a view taken before sees the result, nothing else is hurt."""
    kept = []
    for i in range(20):
        tensor = torch.full((50_000,), float(i))
        kept.append(tensor[-1:])
        dist.all_reduce(tensor, async_op=True)
        del tensor
    other = [torch.full((50_000,), -1.0) for _ in range(20)]
    dist.barrier()
    for i, view in enumerate(kept):
        wait_until(lambda v=view, x=i: float(v) == 2.0 * x)
    assert all(bool((t == -1).all()) for t in other)


@pytest.mark.beyond("gloo", "needs contiguous tensors")
@pytest.mark.ranks(2)
def test_inputs_that_are_not_contiguous_get_their_result_without_wait() -> None:
    buffer = torch.zeros(1000, 2)
    buffer[:, 0] = 1
    dist.barrier()
    future = dist.all_reduce(buffer[:, 0], async_op=True).get_future()
    future.wait()
    assert_bits(buffer[:, 0].contiguous(), torch.full((1000,), 2.0))
    assert_bits(buffer[:, 1].contiguous(), torch.zeros(1000))


@pytest.mark.ranks(2, fresh=True, timeout=10)
def test_exception_of_a_failed_work() -> None:
    shorten_timeout(0.5)
    if dist.get_rank() == 1:
        meet()
        return
    work = dist.all_reduce(torch.ones(10), async_op=True)
    wait_until(work.is_completed)
    if dist.get_backend() != "gloo":
        assert not work.is_success()
        if EXCEPTIONS_CONVERT:
            assert isinstance(work.exception(), Exception)
    with pytest.raises(RuntimeError, match=r"(?i)timed out"):
        work.wait()
    meet()


@pytest.mark.ranks(2)
def test_operations_from_several_threads() -> None:
    """One group a thread: c10d's rule for calls that are not ordered among themselves."""
    groups = [dist.new_group() for _ in range(4)]
    failures = []

    def run(group, salt: int) -> None:
        try:
            for turn in range(30):
                tensor = integers(dist.get_rank(), 777, f32, salt + turn)
                dist.all_reduce(tensor, group=group)
                expected = sum(integers(r, 777, f32, salt + turn) for r in range(2))
                assert_bits(tensor, expected, (salt, turn))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(g, 100 * i)) for i, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.ranks(2)
def test_work_objects_by_the_thousand() -> None:
    tensors = [torch.full((1,), float(i)) for i in range(2000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works[-1].wait()
    for work in works:
        work.wait()
    assert_bits(torch.cat(tensors), 2.0 * torch.arange(2000))


@pytest.mark.ranks(2)
def test_sequence_number_and_type_of_a_work() -> None:
    work = dist.broadcast(payload(0, 3, f32), 0, async_op=True)
    work.wait()
    assert work._get_op_type() == 0
    assert dist.all_reduce(torch.ones(1), async_op=True)._get_op_type() == 1
    dist.barrier()


@pytest.mark.beyond("gloo", "does not tell of pieces")
@pytest.mark.ranks(*FEW)
def test_pieces_are_ready_in_their_order(world_size: int) -> None:
    """What needs the beginning of a large result can start before the end has arrived."""
    me = dist.get_rank()
    size = 4 << 20
    tensor = integers(me, size, f32)
    expected = sum(integers(r, size, f32) for r in range(world_size))
    dist.barrier()
    work = dist.all_reduce(tensor, async_op=True)
    ready = 0
    while ready < tensor.nbytes:
        work.wait_bytes(min(ready + (2 << 20), tensor.nbytes))
        assert work.ready_bytes > ready
        ready = min(work.ready_bytes, tensor.nbytes)
        assert_bits(tensor[: ready // 4], expected[: ready // 4])
    work.wait()
    assert work.ready_bytes == 2**64 - 1


@pytest.mark.beyond("gloo", "does not tell of pieces")
@pytest.mark.ranks(2)
def test_waiting_for_a_piece_ends() -> None:
    """With the work where pieces have no order, at the deadline, and with the group's failure."""
    me = dist.get_rank()
    strided = torch.ones(1000, 2)[:, 0]
    work = dist.all_reduce(strided, async_op=True)
    work.wait_bytes(4)
    assert_bits(strided, torch.full((1000,), 2.0))
    dist.barrier()
    if me == 0:
        late = dist.all_reduce(torch.ones(4 << 20), async_op=True)
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            late.wait_bytes(4, timedelta(milliseconds=100))
    dist.barrier(group=dist.new_group([0, 1]))
    if me == 0:
        late.wait()
    else:
        dist.all_reduce(torch.ones(4 << 20))
