"""Streams alone order calls on device tensors; and what any one forgotten step would break.

Each body is run as it is, and once more for each step that it depends on, with that step left out:
then it must fail.
"""

from __future__ import annotations

import contextlib
import datetime
import time

import harness
import pytest
import stand_in
import torch
import torch.distributed as dist
from deadlines import shorten_timeout
from q7x2._core.extension import load
from values import Signals

pytestmark = stand_in.needs_accelerator

SIZE = 25_000  # floats: 100 kB


def _is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor.cpu() == value).all())


def _reads_after_the_caller(device: str) -> bool:
    """The input is computed late: what is sent is what the stream computes."""
    x = torch.zeros(SIZE, device=device)
    torch.accelerator.synchronize()
    with stand_in.slow(torch.accelerator.current_stream(), 0.05):
        x.fill_(1.0)
        dist.all_reduce(x)
        return _is_all(x, 2)


def _writes_after_the_caller(device: str) -> bool:
    """An output is still read by earlier work of the stream: it gets the result afterwards."""
    x = torch.ones(SIZE, device=device)
    out = torch.zeros(2 * SIZE, device=device)
    torch.accelerator.synchronize()
    with stand_in.slow(torch.accelerator.current_stream(), 0.05):
        before = out.clone()
        dist.all_gather_into_tensor(out, x, async_op=True)
        torch.accelerator.synchronize()
    dist.barrier()
    torch.accelerator.synchronize()
    return _is_all(before, 0) and _is_all(out, 1)


def _caller_goes_on_after_the_results(device: str) -> bool:
    """The copy to the device takes long: the stream computes with the result all the same."""
    x = torch.ones(SIZE, device=device)
    with stand_in.copy_rate(1e6):
        dist.all_reduce(x)
        y = x + 1
        torch.accelerator.current_stream().synchronize()
    return _is_all(y, 3)


def _results_are_awaited(device: str) -> bool:
    """The other rank comes late: what the stream computes with is the sum all the same."""
    x = torch.ones(SIZE, device=device)
    if dist.get_rank() == 1:
        time.sleep(0.1)
    dist.all_reduce(x)
    return _is_all(x + 1, 3)


def _dropped_inputs_stay(device: str) -> bool:
    """An input is dropped before it is copied to the host: its memory is not used again."""
    x = torch.ones(SIZE, device=device)
    out = torch.empty(2 * SIZE, device=device)
    torch.accelerator.synchronize()
    with stand_in.paused(*stand_in.copying_to_host()):
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        del x
        other = torch.full((SIZE,), 7.0, device=device)
        torch.accelerator.current_stream().synchronize()
    work.wait()
    return _is_all(out, 1) and _is_all(other, 7)


def _dropped_outputs_stay(device: str) -> bool:
    """An output is dropped before it is copied to the device: nobody else's memory changes."""
    x = torch.ones(SIZE, device=device)
    torch.accelerator.synchronize()
    in_use = stand_in.load().allocated_bytes(0)
    with stand_in.paused(*stand_in.copying_to_device()):
        dist.all_reduce(x, async_op=True)
        del x
        patience = time.monotonic() + 1
        while stand_in.load().allocated_bytes(0) == in_use and time.monotonic() < patience:
            time.sleep(0.01)
        other = torch.full((SIZE,), 7.0, device=device)
        torch.accelerator.current_stream().synchronize()
    torch.accelerator.synchronize()
    return _is_all(other, 7)


BODIES = {
    _reads_after_the_caller: ["ready"],
    _writes_after_the_caller: ["ready"],
    _caller_goes_on_after_the_results: ["done"],
    _results_are_awaited: ["gate"],
    _dropped_inputs_stay: ["record"],
    _dropped_outputs_stay: ["record"],
}
# These need memory that nobody had before, and so ranks of their own.
IN_NEW_MEMORY = (_dropped_inputs_stay, _dropped_outputs_stay)
CASES = [(body, what) for body, lacks in BODIES.items() for what in ("nothing", *lacks)]


# What these do needs no control of a stream but `slow`, so CUDA's streams can do it, too.
WITHOUT_CONTROL = [_reads_after_the_caller, _writes_after_the_caller, _results_are_awaited]


@pytest.mark.parametrize(
    ("body", "what"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_step_of_the_order_is_needed(
    body, what: str, device_pool, new_pool, shared: str, device: str
) -> None:
    if what != "nothing" or body not in WITHOUT_CONTROL:
        stand_in.needs_control(device)
    pool = (new_pool if body in IN_NEW_MEMORY else device_pool)(2)
    verdicts = stand_in.run(pool, stand_in.judge, shared, device, case=body, what=what)
    assert verdicts == [what == "nothing"] * 2


def _wait_leaves_the_host_free(device: str) -> None:
    x = torch.ones(SIZE, device=device)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        assert work.wait()
        y = x + 1
        # The other rank has not called: so nothing of this can have waited for it.
        assert not work.is_completed()
        assert not torch.accelerator.current_stream().query()
        dist.send(torch.ones(1), 1)
        torch.accelerator.synchronize()
        assert work.is_completed()
        assert _is_all(y, 3)
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(x)
        assert _is_all(x, 2)


def test_wait_leaves_the_host_free(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _wait_leaves_the_host_free, shared, device)


def _abort_opens_the_gates(device: str, what: str) -> bool:
    x = torch.ones(SIZE, device=device)
    signals = Signals()
    if dist.get_rank() == 1:
        signals.wait("rank 0 has aborted")
        return what == "nothing"
    with stand_in.left_out(what):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        with pytest.raises(dist.DistBackendError, match="aborted"):
            work.wait(datetime.timedelta(seconds=5))
        again = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match="aborted"):
            again.wait(datetime.timedelta(seconds=5))
        signals.give("rank 0 has aborted")
        if what != "nothing":
            time.sleep(0.5)  # for what does not come
            return torch.accelerator.current_stream().query()
        harness.wait_until(lambda: torch.accelerator.current_stream().query())
        return True


@pytest.mark.parametrize("what", ["nothing", "opening"])
def test_an_abort_opens_the_gates(what: str, device_pool, shared: str, device: str) -> None:
    if what != "nothing":
        stand_in.needs_control(device)
    passes = stand_in.run(device_pool(2), _abort_opens_the_gates, shared, device, what=what)
    assert passes == [what == "nothing"] * 2


def _deadline_opens_the_gates(device: str) -> None:
    x = torch.ones(SIZE, device=device)
    group = dist.new_group()
    shorten_timeout(0.3, group)
    signals = Signals()
    if dist.get_rank() == 1:
        signals.wait("rank 0 has given up")
        return
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work.wait()  # nothing is known yet
    torch.accelerator.synchronize()
    with pytest.raises(dist.DistBackendError, match="Timed out"):
        work.wait()
    signals.give("rank 0 has given up")


def test_a_deadline_opens_the_gates(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _deadline_opens_the_gates, shared, device)


def _captured() -> None:
    module = stand_in.load()
    stream = torch.Stream("fake")
    x = torch.ones(4, device="fake")
    with stream:
        module.set_capturing(0, stream.stream_id, True)
        with pytest.raises(RuntimeError, match="recorded for a graph"):
            dist.all_reduce(x)
        module.set_capturing(0, stream.stream_id, False)
        dist.all_reduce(x)
    with pytest.raises(ValueError, match="has stream calls already"):
        load().register_accelerator("cuda", module.stream_calls())


def test_a_stream_that_is_recorded_is_refused(device_pool, shared: str) -> None:
    stand_in.run(device_pool(1), _captured, shared)


def _captured_by_cuda(device: str) -> None:
    x = torch.ones(4, device=device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="recorded for a graph"), torch.cuda.graph(graph):
        dist.all_reduce(x)
    dist.all_reduce(x)
    assert _is_all(x, 1)


def test_a_cuda_stream_that_is_recorded_is_refused(device_pool, shared: str, device: str) -> None:
    if device != "cuda":
        pytest.skip("needs CUDA's graphs")
    stand_in.run(device_pool(1), _captured_by_cuda, shared, device)


def _futures(device: str) -> None:
    x = torch.ones(SIZE, device=device)
    with stand_in.copy_rate(1e6) if device == stand_in.NAME else contextlib.nullcontext():
        future = dist.all_reduce(x, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        (result,) = future.wait()
        y = result + 1
        z = doubled.wait() + 1
        torch.accelerator.current_stream().synchronize()
    assert _is_all(y, 3)
    assert _is_all(z, 5)


def test_futures_follow_the_streams(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _futures, shared, device)


def _a_future_waits_for_no_later_call(device: str) -> float:
    """The second call of one rank ends when the other has used the result of the first."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    x, y = torch.ones(SIZE, device=device), torch.ones(SIZE, device=device)
    dist.all_reduce(y)  # from here on calls need no other before them
    torch.accelerator.synchronize()
    first = dist.all_reduce(x, async_op=True)
    if rank == 1:
        store.wait(["used"], datetime.timedelta(seconds=20))
    second = dist.all_reduce(y, async_op=True)
    if rank == 0:
        first.get_future().wait()
        assert _is_all(x, 2)
        store.set("used", "yes")
    second.wait()
    return float(y.cpu()[0])


def test_a_future_waits_for_no_later_call(device_pool, shared: str, device: str) -> None:
    results = stand_in.run(device_pool(2), _a_future_waits_for_no_later_call, shared, device)
    assert results == [4.0, 4.0]


def _messages_keep_their_order(device: str) -> None:
    stream = torch.Stream(device)
    if dist.get_rank() == 0:
        fake = device == stand_in.NAME
        with stream, stand_in.paused(stream) if fake else stand_in.slow(stream, 0.05):
            x = torch.full((4,), 1.0, device=device)
            works = [
                dist.isend(x, 1, tag=3),
                dist.isend(torch.full((4,), 2.0), 1, tag=3),
                dist.isend(torch.full((4,), 3.0), 1, tag=4),
            ]
        for work in works:
            work.wait()
        dist.barrier()
        return
    first, second = torch.zeros(4), torch.zeros(4, device=device)
    dist.recv(first, 0, tag=3)
    dist.recv(second, 0, tag=3)
    assert _is_all(first, 1)
    assert _is_all(second, 2)
    dist.recv(first, 0, tag=4)
    assert _is_all(first, 3)
    dist.barrier()


def test_messages_keep_their_order(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _messages_keep_their_order, shared, device)
