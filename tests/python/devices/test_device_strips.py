"""Large calls on device tensors pass strip by strip (csrc/device/strips.h) and overlap."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable

import harness
import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_calls import CALLS
from pairs import each_value
from values import Signals, assert_bits, integers, payload

pytestmark = stand_in.needs_accelerator

STRIP = 1 << 18  # floats: 1 MiB
SEVERAL = 2 * STRIP + 1000


def _backend(device: str) -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device(device))


# ----------------------------------------------------------------------------------------- bits


def _compare(call: Callable[..., list[torch.Tensor]], *arguments: object) -> None:
    expected = call("cpu", *arguments)
    with contextlib.ExitStack() as slow:
        # Strips are still to come when the first ones are sent.
        for stream in stand_in.copying_to_host():
            slow.enter_context(stand_in.slow(stream, 0.001))
        results = [result.clone() for result in call("fake", *arguments)]
        torch.fake.synchronize()
    assert len(results) == len(expected)
    for result, target in zip(results, expected, strict=True):
        assert_bits(result.cpu(), target, f"{call.__name__} of {arguments}")


def _compare_dense() -> None:
    for call in CALLS:
        _compare(call, SEVERAL, torch.float32)
    for call in (_same_tensor_twice, _gather_in_place, _gather_from_the_output):
        _compare(call)


def _same_tensor_twice(device: str) -> list[torch.Tensor]:
    """Both contributions are what the tensor holds when the call is made."""
    x = integers(dist.get_rank(), SEVERAL, torch.float32).to(device)
    _backend(device).allreduce_coalesced([x, x]).wait()
    return [x]


def _gather_in_place(device: str) -> list[torch.Tensor]:
    rank = dist.get_rank()
    whole = payload(rank, dist.get_world_size() * SEVERAL, torch.float32).to(device)
    dist.all_gather_into_tensor(whole, whole[rank * SEVERAL : (rank + 1) * SEVERAL])
    return [whole]


def _gather_from_the_output(device: str) -> list[torch.Tensor]:
    """The input lies where other ranks' parts arrive."""
    whole = payload(dist.get_rank(), dist.get_world_size() * SEVERAL, torch.float32).to(device)
    dist.all_gather_into_tensor(whole, whole[SEVERAL // 3 : SEVERAL // 3 + SEVERAL])
    return [whole]


def test_strips_have_the_bits_of_cpu_tensors(device_pool, shared: str) -> None:
    stand_in.run(device_pool(3), _compare_dense, shared)


def _compressed(device: str, codec: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(SEVERAL, generator=generator).to(dtype).to(device)
    residual = (torch.randn(SEVERAL, generator=generator) / 8).to(device)
    for step in range(2):
        q7x2.all_reduce(x, codec=codec, residual=residual, step=step, edges="all")
    return [x, residual]


def _compare_compressed(codec: str, dtype: torch.dtype) -> None:
    _compare(_compressed, codec, dtype)


@pytest.mark.parametrize(
    ("codec", "dtype"),
    each_value(
        ["int4", "topk:0.01", "topk:0.01:balanced", "fp8_e4m3"], [torch.float32, torch.bfloat16]
    ),
)
def test_compressed_strips_have_the_bits_of_cpu_tensors(
    codec: str, dtype: torch.dtype, device_pool, shared: str
) -> None:
    stand_in.run(device_pool(2), _compare_compressed, shared, codec=codec, dtype=dtype)


def _counted() -> None:
    world = dist.get_world_size()
    x = torch.ones(SEVERAL, device="fake")
    many = torch.ones(world * SEVERAL, device="fake")
    parts = list(many.chunk(world))
    strided = torch.ones(2, SEVERAL, device="fake").t()
    one, all_ = x.nbytes, many.nbytes
    assert stand_in.bytes_of(lambda: dist.all_reduce(x)) == (one, one)
    assert stand_in.bytes_of(lambda: dist.all_reduce(strided)) == (2 * one, 2 * one)
    assert stand_in.bytes_of(lambda: dist.all_gather_into_tensor(many, x)) == (one, all_)
    assert stand_in.bytes_of(lambda: dist.all_gather(parts, x)) == (one, all_)
    assert stand_in.bytes_of(lambda: dist.reduce_scatter_tensor(x, many)) == (all_, one)
    assert stand_in.bytes_of(lambda: dist.all_to_all_single(many, many.clone())) == (all_, all_)
    sends = dist.get_rank() == 0
    read, written = stand_in.bytes_of(lambda: dist.broadcast(x, 0))
    assert (read, written) == ((one, 0) if sends else (0, one))


def test_each_byte_is_copied_once(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2), _counted, shared)


# ------------------------------------------------------------------------------------- overlap


def _results_pass_while_inputs_arrive() -> None:
    x = torch.ones(16 * STRIP, device="fake")
    torch.fake.synchronize()
    token = torch.zeros(1)
    if dist.get_rank() == 0:
        streams = stand_in.copying_to_host()
        with stand_in.paused(*streams):
            work = dist.all_reduce(x, async_op=True)
            for stream in streams:  # waits for the caller; copies and announces half of the strips
                stand_in.load().step(stream.device_index, stream.stream_id, 1 + 2 * 8)
            dist.recv(token, 1)
    else:
        work = dist.all_reduce(x, async_op=True)
        harness.wait_until(lambda: bool((x[:STRIP].cpu() == 2).all()))
        assert bool((x[-STRIP:].cpu() == 1).all())
        assert not work.is_completed()
        dist.send(token, 0)
    work.wait()
    assert bool((x.cpu() == 2).all())


def test_results_pass_while_inputs_arrive(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2), _results_pass_while_inputs_arrive, shared)


def _compressed_calls_leave_the_host_free(codec: str) -> None:
    expected = torch.arange(float(SEVERAL)) % 255
    doubled = expected.to("fake")
    with stand_in.paused(torch.fake.current_stream()):
        # A call that waited for its input here would never return.
        doubled.mul_(2)
        work = q7x2.all_reduce(doubled, codec=codec, step=1, edges="all", async_op=True)
        assert work is not None
        work.wait()
        result = doubled.clone()
    q7x2.all_reduce(expected.mul_(2), codec=codec, step=1, edges="all")
    assert_bits(result.cpu(), expected, f"the sum with {codec}")


@pytest.mark.parametrize("codec", ["int4", "bf16", "topk:0.01"])
def test_compressed_calls_leave_the_host_free(codec: str, device_pool, shared: str) -> None:
    stand_in.run(device_pool(2), _compressed_calls_leave_the_host_free, shared, codec=codec)


# --------------------------------------------------------------------- what a lost step breaks


def _strips_await_their_slices() -> bool:
    """The other rank comes late: what the stream computes with is the sum all the same."""
    x = torch.ones(SEVERAL, device="fake")
    if dist.get_rank() == 1:
        time.sleep(0.1)
    dist.all_reduce(x)
    return bool(((x + 1).cpu() == 3).all())


def _caller_awaits_the_last_strip() -> bool:
    """The copies to the device take long: the stream computes with the sum all the same."""
    x = torch.ones(SEVERAL, device="fake")
    with stand_in.copy_rate(10 * x.nbytes):
        dist.all_reduce(x)
        y = x + 1
        torch.fake.current_stream().synchronize()
    return bool((y.cpu() == 3).all())


def _first_strip_awaits_the_caller() -> bool:
    """The input is computed late: what is sent is what the stream computes."""
    x = torch.zeros(SEVERAL, device="fake")
    torch.fake.synchronize()
    with stand_in.slow(torch.fake.current_stream(), 0.05):
        x.fill_(1.0)
        dist.all_reduce(x)
        return bool((x.cpu() == 2).all())


def _dropped_inputs_stay() -> bool:
    """An input is dropped between two strips: its memory is not used again."""
    x = torch.ones(SEVERAL, device="fake")
    out = torch.empty(2 * SEVERAL, device="fake")
    torch.fake.synchronize()
    streams = stand_in.copying_to_host()
    with stand_in.paused(*streams):
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        for stream in streams:
            stand_in.load().step(stream.device_index, stream.stream_id, 3)
        del x
        other = torch.full((SEVERAL,), 7.0, device="fake")
        torch.fake.current_stream().synchronize()
    work.wait()
    return bool((out.cpu() == 1).all()) and bool((other.cpu() == 7).all())


BODIES = {
    _strips_await_their_slices: "gate",
    _caller_awaits_the_last_strip: "done",
    _first_strip_awaits_the_caller: "ready",
    _dropped_inputs_stay: "record",
}
# These need memory that nobody had before, and so ranks of their own.
IN_NEW_MEMORY = (_dropped_inputs_stay,)
CASES = [(body, what) for body, lack in BODIES.items() for what in ("nothing", lack)]


@pytest.mark.parametrize(
    ("body", "what"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_step_is_needed(body, what: str, device_pool, new_pool, shared: str) -> None:
    pool = (new_pool if body in IN_NEW_MEMORY else device_pool)(2)
    verdicts = stand_in.run(pool, stand_in.judge, shared, case=body, what=what)
    assert verdicts == [what == "nothing"] * 2


def _abort_opens_all_gates(what: str) -> bool:
    """One rank calls, and aborts: its stream passes the gates of all strips."""
    x = torch.ones(SEVERAL, device="fake")
    signals = Signals()
    if dist.get_rank() == 1:
        signals.wait("rank 0 has aborted")
        return what == "nothing"
    with stand_in.left_out(what):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        _backend("cpu").abort()
        with pytest.raises(dist.DistBackendError, match="aborted"):
            work.wait(datetime.timedelta(seconds=5))
        signals.give("rank 0 has aborted")
        if what != "nothing":
            time.sleep(0.5)  # for what does not come
            return torch.fake.current_stream().query()
        harness.wait_until(lambda: torch.fake.current_stream().query())
        return True


@pytest.mark.parametrize("what", ["nothing", "opening"])
def test_an_abort_opens_all_gates(what: str, device_pool, shared: str) -> None:
    passes = stand_in.run(device_pool(2), _abort_opens_all_gates, shared, what=what)
    assert passes == [what == "nothing"] * 2
