"""The futures of a Work: their values, their callbacks, their failures."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from deadlines import shorten_timeout
from values import assert_bits, blank, f32, integers, meet


@pytest.mark.ranks(2, 3)
def test_future(world_size: int) -> None:
    """DDP's reducer takes the reduced bucket from the future's value."""
    tensor = integers(dist.get_rank(), 500, f32)
    expected = sum(integers(r, 500, f32) for r in range(world_size))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    value = future.wait()
    assert isinstance(value, list)
    assert_bits(value[0], expected)
    assert value[0].data_ptr() == tensor.data_ptr()
    assert future.done()


@pytest.mark.ranks(2)
def test_future_callbacks() -> None:
    tensor = torch.full((100,), 3.0)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    halved = future.then(lambda f: f.value()[0] / 2)
    assert_bits(halved.wait(), torch.full((100,), 3.0))
    after = future.then(lambda f: "late")  # on a future that is done
    assert after.wait() == "late"


@pytest.mark.ranks(2)
def test_future_callback_runs_without_a_waiter() -> None:
    ran = threading.Event()
    dist.barrier()
    future = dist.all_reduce(torch.ones(100), async_op=True).get_future()
    future.add_done_callback(lambda f: ran.set())
    assert ran.wait(60)


@pytest.mark.ranks(2)
def test_future_callback_may_start_another_operation() -> None:
    second = {}
    started = threading.Event()

    def then(future) -> None:
        second["tensor"] = torch.ones(10)
        second["work"] = dist.all_reduce(second["tensor"], async_op=True)
        started.set()

    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    future.add_done_callback(then)
    assert started.wait(60)
    second["work"].wait()
    assert_bits(second["tensor"], torch.full((10,), 2.0))


@pytest.mark.ranks(2)
def test_future_callback_may_wait_for_another_operation() -> None:
    """As those of PyTorch's PowerSGD hook do."""

    def another(future: torch.futures.Future) -> torch.Tensor:
        (first,) = future.value()
        return dist.all_reduce(2 * first, async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    last = future.then(another).then(lambda f: another(f.then(lambda g: [g.value()])))
    assert_bits(last.wait(), torch.full((10,), 32.0))


@pytest.mark.beyond("gloo", "has no futures of reduce_scatter, send and receive")
@pytest.mark.ranks(2)
def test_futures_of_every_collective(world_size: int) -> None:
    me = dist.get_rank()
    gathered = [blank(4, f32) for _ in range(world_size)]
    joined = blank(4 * world_size, f32)
    part = blank(4, f32)
    swapped = blank(4 * world_size, f32)
    works = [
        dist.broadcast(torch.ones(4), 0, async_op=True),
        dist.all_gather(gathered, torch.ones(4), async_op=True),
        dist.all_gather_into_tensor(joined, torch.ones(4), async_op=True),
        dist.reduce_scatter_tensor(part, torch.ones(4 * world_size), async_op=True),
        dist.all_to_all_single(swapped, torch.ones(4 * world_size), async_op=True),
        dist.reduce(torch.ones(4), 0, async_op=True),
        dist.barrier(async_op=True),
        dist.isend(torch.ones(1), (me + 1) % world_size),
        dist.irecv(torch.zeros(1), (me - 1) % world_size),
    ]
    for work in works:
        future = work.get_future()
        future.wait()
        assert future.done()
        assert work.is_completed()
    assert_bits(part, torch.full((4,), float(world_size)))
    assert_bits(joined, torch.ones(4 * world_size))


@pytest.mark.beyond("gloo", "has no such future")
@pytest.mark.ranks(2)
def test_future_of_the_outcome() -> None:
    """get_future_result ends with WorkResult.SUCCESS, which is 0."""
    work = dist.all_reduce(torch.ones(10), async_op=True)
    assert work.get_future_result().wait() == 0


@pytest.mark.ranks(2, fresh=True, timeout=10)
def test_future_of_a_failed_work() -> None:
    shorten_timeout(0.5)
    if dist.get_rank() == 1:
        meet()
        return
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    with pytest.raises(RuntimeError, match=r"(?i)timed out"):
        future.wait()
    meet()
