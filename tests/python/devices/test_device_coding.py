"""Compressed calls that a device encodes and decodes: messages cross the bus, not tensors.

The stand-in runs the kernels of csrc/kernels/cuda as fibres. In a group's first call of a kind all
ranks but the first hear of the Plan when the call has begun, so tests make calls twice.
"""

from __future__ import annotations

import datetime
import itertools
import time

import harness
import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_codings import SIZE, VOTES, expect_cpu_bits, normal
from pairs import nightly
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

pytestmark = stand_in.needs_accelerator

CODECS = ["fp16", "fp8_e5m2", "int4", "int6:minmax", "int8:sr", "onebit", "hadamard+int4"]


# ------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("world", [nightly(2, "three ranks do more of the same"), 3])
def test_bits_are_those_of_cpu_tensors(world: int, device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(world), expect_cpu_bits, shared, device, codecs=CODECS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bits_of_short_floats_are_those_of_cpu_tensors(
    dtype: torch.dtype, device_pool, shared: str, device: str
) -> None:
    codecs = ["bf16", "int4", "hadamard+int4"]
    stand_in.run(device_pool(2), expect_cpu_bits, shared, device, codecs=codecs, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_votes_have_the_bits_of_cpu_tensors(
    dtype: torch.dtype, device_pool, shared: str, device: str
) -> None:
    stand_in.run(device_pool(3), expect_cpu_bits, shared, device, codecs=VOTES, dtype=dtype)


def _compare_algorithms(device: str) -> None:
    for algorithm in ("direct", "sra", "ring", "double_binary_tree"):
        with q7x2.collectives.algorithm(algorithm):
            expect_cpu_bits(device, ["int4"])


def test_every_algorithm_has_the_bits_of_cpu_tensors(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(3), _compare_algorithms, shared, device)


def _first_calls(device: str, edges: str) -> None:
    """Of each kind the first one, on a device and then of CPU tensors."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def calls(where: str) -> list[torch.Tensor]:
        x = normal(SIZE, rank).to(where)
        residual = (normal(SIZE, rank + 20) / 8).to(where)
        whole = normal(world * SIZE, rank + 30).to(where)
        errors = (normal(world * SIZE, rank + 40) / 8).to(where)
        shard, gathered = x.new_empty(SIZE), x.new_empty(world * SIZE)
        how = {"codec": "int4", "step": 1, "edges": edges}
        q7x2.reduce_scatter_tensor(shard, whole, residual=errors, **how)
        q7x2.all_gather_into_tensor(gathered, x, **how)
        q7x2.all_reduce(x, residual=residual, **how)
        return [x.clone(), residual, shard, errors, gathered]

    results = calls(device)
    for i, (result, target) in enumerate(zip(results, calls("cpu"), strict=True)):
        assert_bits(result.cpu(), target, f"result {i} with edges {edges!r}")


@pytest.mark.parametrize("edges", ["all", "host"])
def test_first_calls_have_the_bits_of_cpu_tensors(
    edges: str, device_pool, shared: str, device: str
) -> None:
    stand_in.run(device_pool(3), _first_calls, shared, device, edges=edges)


def _not_finite(device: str) -> None:
    bads = itertools.product((float("inf"), float("nan")), (torch.float32, torch.bfloat16))
    for bad, dtype in bads:
        for _ in range(2):
            x, y = torch.ones(SIZE, dtype=dtype), torch.ones(SIZE, dtype=dtype)
            if dist.get_rank() == 1:
                x[5] = y[5] = bad
            y = y.to(device)
            q7x2.all_reduce(x, codec="int4", step=1, edges="all")
            q7x2.all_reduce(y, codec="int4", step=1, edges="all")
            torch.testing.assert_close(y.cpu(), x, rtol=0, atol=0, equal_nan=True)
            assert y.isnan().any()


def test_numbers_that_are_not_finite_reach_every_rank(
    device_pool, shared: str, device: str
) -> None:
    stand_in.run(device_pool(2), _not_finite, shared, device)


def _beyond_fp16(device: str) -> None:
    """The sum is finite in fp32 and in its message, and the result is not."""
    for _ in range(2):
        x = torch.full((SIZE,), 40_000.0, dtype=torch.float16).to(device)
        work = q7x2.all_reduce(x, codec="bf16", edges="all", nonfinite="error", async_op=True)
        assert work is not None
        with pytest.raises(RuntimeError, match="infinities or NaNs"):
            work.wait(datetime.timedelta(seconds=60))


def test_results_beyond_fp16_are_not_finite(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _beyond_fp16, shared, device)


# ------------------------------------------------------------------------------------------- bus


def _counted(dtype: torch.dtype, share: float, codec: str) -> None:
    dense = torch.ones(1 << 16, device="fake", dtype=dtype)
    coded = torch.ones(1 << 16, device="fake", dtype=dtype)
    residual = torch.zeros(1 << 16, device="fake")
    plain = sum(stand_in.bytes_of(lambda: dist.all_reduce(dense)))
    assert plain == 2 * dense.nbytes

    def call() -> None:
        q7x2.all_reduce(
            coded, codec=codec, residual=residual if codec == "int4" else None, edges="all"
        )

    for _ in range(2):
        assert sum(stand_in.bytes_of(call)) <= share * plain


COUNTED = [
    (torch.float32, "int4", 0.3),
    (torch.bfloat16, "int4", 0.4),
    (torch.float32, "sign", 0.1),
    (torch.float32, "sumint8", 0.26),
    (torch.bfloat16, "sumint8", 0.52),
]


@pytest.mark.parametrize(("dtype", "codec", "share"), COUNTED)
@pytest.mark.parametrize("world", [2, nightly(4, "takes four ranks")])
def test_messages_cross_the_bus(
    world: int, dtype: torch.dtype, codec: str, share: float, device_pool, shared: str
) -> None:
    arguments = {"dtype": dtype, "codec": codec, "share": share}
    stand_in.run(device_pool(world), _counted, shared, **arguments)


def _counted_by_ddp() -> None:
    def bytes_of_a_step(hook: object) -> int:
        torch.manual_seed(0)
        ddp = DDP(torch.nn.Linear(128, 128).to("fake"), bucket_cap_mb=100)
        q7x2.attach(ddp, hook)
        x = torch.ones(4, 128, device="fake")
        for _ in range(2):
            ddp(x).sum().backward()
        return sum(stand_in.bytes_of(lambda: ddp(x).sum().backward()))

    dense = bytes_of_a_step(q7x2.Allreduce())
    assert bytes_of_a_step(q7x2.Quantize("int4", edges="all")) <= 0.3 * dense


def test_messages_of_ddp_cross_the_bus(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2), _counted_by_ddp, shared)


def _described(device: str) -> None:
    assert q7x2.describe().device_paths == []
    x = torch.ones(1 << 16, device=device)
    dist.all_reduce(x)

    def call() -> None:
        q7x2.all_reduce(x, codec="int4", edges="all")

    moved = stand_in.bytes_of(call) if device == stand_in.NAME else call()
    torch.accelerator.synchronize()
    facts = q7x2.describe()
    staged, coded = facts.device_paths
    assert staged == {"path": "staged", "calls": 1, "to_host": x.nbytes, "to_device": x.nbytes}
    assert (coded["path"], coded["calls"]) == ("coded", 1)
    assert 0 < coded["to_host"] + coded["to_device"] < 0.3 * 2 * x.nbytes
    assert moved in (None, (coded["to_host"], coded["to_device"]))
    assert f"on devices, staged: 1 calls, {x.nbytes} bytes to the host" in str(facts)


def test_describe_counts_what_crosses_the_bus(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _described, shared, device)


# ------------------------------------------------------------------------- integers that are added

INTEGERS = ["sumint8", "sumint8:sr", "sumint16:g=64", "sumint32", "sumint32:sr"]


def _integers(device: str, codec: str, dtype: torch.dtype) -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = normal(SIZE, rank).to(dtype).to(device)
    x[5] = torch.inf if rank == 1 else 0
    mean = normal(SIZE, rank + 10).to(dtype).to(device)
    residual = (normal(SIZE, rank + 20) / 8).to(device)
    whole = normal(world * SIZE, rank + 30).to(dtype).to(device)
    shard = x.new_empty(SIZE)
    # The device is late, and the host does not wait for it.
    streams = [] if device == "cpu" else [torch.accelerator.current_stream()]
    with stand_in.paused(*streams):
        q7x2.all_reduce(x, codec=codec, step=1)
        q7x2.all_reduce(mean, codec=codec, op=dist.ReduceOp.AVG, residual=residual, step=2)
        q7x2.reduce_scatter_tensor(shard, whole, codec=codec, step=3)
        mean *= 2
    return [x, mean, residual, shard]


def _compare_integers() -> None:
    for codec, dtype in itertools.product(INTEGERS, (torch.float32, torch.bfloat16)):
        expected = _integers("cpu", codec, dtype)
        results = _integers("fake", codec, dtype)
        for i, (result, target) in enumerate(zip(results, expected, strict=True)):
            assert_bits(result.cpu(), target, f"result {i} of {codec}, {dtype}")


def test_integers_are_made_and_read_by_the_device(device_pool, shared: str) -> None:
    stand_in.run(device_pool(3), _compare_integers, shared)


# ----------------------------------------------------------------------------------------- order


def _sum(x: torch.Tensor) -> None:
    q7x2.all_reduce(x, codec="fp16", step=1, edges="all")


def _reads_after_the_caller() -> bool:
    """The input is computed late: what is sent is what the stream computes."""
    x = torch.zeros(SIZE, device="fake")
    torch.fake.synchronize()
    with stand_in.slow(torch.fake.current_stream(), 0.05):
        x.fill_(1.0)
        _sum(x)
        return bool((x.cpu() == 2).all())


def _results_are_awaited() -> bool:
    """The other rank comes late: what the stream computes with is the sum all the same."""
    x = torch.ones(SIZE, device="fake")
    if dist.get_rank() == 1:
        time.sleep(0.1)
    _sum(x)
    return bool(((x + 1).cpu() == 3).all())


def _dropped_tensors_stay() -> bool:
    """The tensor is dropped before the device encodes it: its memory is not used again."""
    x = torch.ones(SIZE, device="fake")
    other = torch.full((SIZE,), 7.0, device="fake")
    torch.fake.synchronize()
    streams = [*stand_in.copying_to_host(), *stand_in.copying_to_device()]
    with stand_in.paused(*streams):
        work = q7x2.all_reduce(x, codec="fp16", step=1, edges="all", async_op=True)
        del x
        other = torch.full((SIZE,), 7.0, device="fake")
        torch.fake.current_stream().synchronize()
    assert work is not None
    work.wait()
    torch.fake.synchronize()
    return bool((other.cpu() == 7).all())


# These need memory that nobody had before, and so ranks of their own.
IN_NEW_MEMORY = (_dropped_tensors_stay,)
CASES = [
    (body, what)
    for body, lack in {
        _reads_after_the_caller: "ready",
        _results_are_awaited: "gate",
        _dropped_tensors_stay: "nothing",
    }.items()
    for what in dict.fromkeys(("nothing", lack))
]


def _sum_of_ones() -> None:
    _sum(torch.ones(SIZE, device="fake"))


@pytest.mark.parametrize(
    ("body", "what"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_step_of_the_order_is_needed(
    body, what: str, device_pool, new_pool, shared: str
) -> None:
    pool = (new_pool if body in IN_NEW_MEMORY else device_pool)(2)
    verdicts = stand_in.run(pool, stand_in.judge, shared, case=body, what=what, first=_sum_of_ones)
    assert verdicts == [what == "nothing"] * 2


def _error_waits_for_the_device() -> None:
    x = torch.ones(SIZE, device="fake")
    _sum(x)
    torch.fake.synchronize()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    streams = stand_in.copying_to_host()
    if dist.get_rank() == 1:
        with pytest.raises(dist.DistBackendError):
            dist.recv(torch.ones(1), 0)
        return
    copied = stand_in.load().copied_bytes()[0]
    with stand_in.paused(*streams):
        # The input is ready, and the host knows; the message has memory, is encoded and copied,
        # and the host does not know.
        for stream in streams:
            stand_in.load().step(stream.device_index, stream.stream_id, 3)
        work = q7x2.all_reduce(x, codec="fp16", step=1, edges="all", async_op=True)
        assert work is not None
        harness.wait_until(lambda: stand_in.load().copied_bytes()[0] != copied)
        backend.abort()
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            work.wait(datetime.timedelta(milliseconds=200))
    with pytest.raises(dist.DistBackendError, match="aborted"):
        work.wait(datetime.timedelta(seconds=30))


def test_an_error_waits_for_the_device(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2), _error_waits_for_the_device, shared)
