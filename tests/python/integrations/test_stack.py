"""What stands on c10d besides: functional and compiled collectives, profiler, debugging."""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from pairs import nightly
from plain_model import Plain, batch, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_same_on_all_ranks, f32, integers

# --- functional collectives ----------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_functional_collectives(world_size: int) -> None:
    me = dist.get_rank()
    group = dist.group.WORLD
    x = integers(me, 12, f32)
    parts = [integers(r, 12, f32) for r in range(world_size)]
    total = sum(parts)
    assert_bits(funcol.all_reduce(x, "sum", group) + 0, total)
    assert_bits(x, parts[me])
    assert_bits(funcol.all_gather_tensor(x, 0, group) + 0, torch.cat(parts))
    joined = torch.cat([x] * world_size)
    assert_bits(funcol.reduce_scatter_tensor(joined, "sum", 0, group) + 0, total)
    assert_bits(funcol.broadcast(x, 1, group) + 0, parts[1])
    swapped = funcol.all_to_all_single(joined, None, None, group) + 0
    assert_bits(swapped, torch.cat(parts))
    coalesced = funcol.all_reduce_coalesced([x, 2 * x], "sum", group)
    assert_bits(coalesced[0] + 0, total)
    assert_bits(coalesced[1] + 0, 2 * total)
    gathered = funcol.all_gather_into_tensor_coalesced([x, x + 1], group)
    assert_bits(gathered[1] + 0, torch.cat(parts) + 1)
    scattered = funcol.reduce_scatter_tensor_coalesced([joined, joined], "sum", [0, 0], group)
    assert_bits(scattered[1] + 0, total)


@pytest.mark.ranks(2)
def test_functional_all_to_all_uneven() -> None:
    me = dist.get_rank()
    x = torch.arange(3, dtype=f32) + 10 * me
    out = funcol.all_to_all_single(x, [1, 1] if me == 0 else [2, 2], [1, 2], dist.group.WORLD) + 0
    assert out.tolist() == ([0.0, 10.0] if me == 0 else [1.0, 2.0, 11.0, 12.0])


@pytest.mark.ranks(2)
def test_functional_collectives_with_autograd() -> None:
    x = torch.full((2, 3), float(dist.get_rank() + 1), requires_grad=True)
    out = funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (out * 3).sum().backward()  # torch 2.11 wants a contiguous gradient here
    assert_bits(x.grad, torch.full((2, 3), 6.0))


def compiled_step(x: torch.Tensor, world_size: int) -> torch.Tensor:
    y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    z = funcol.all_gather_tensor(y + 1, 0, dist.group.WORLD)
    return funcol.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD) * 3


def plain_collectives(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@pytest.mark.ranks(2, fresh=True, deadline=120)
def test_compiled_collectives(world_size: int) -> None:
    """Functional ones, and plain ones, which the compiler rewrites."""
    x = integers(dist.get_rank(), 10, f32)
    expected = compiled_step(x, world_size)
    step = torch.compile(compiled_step, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert_bits(step(x, world_size), expected + 0)
    plain = torch.compile(plain_collectives, backend="aot_eager", fullgraph=True)
    total = sum(integers(r, 10, f32) for r in range(world_size))
    assert_bits(plain(x), total * 2 + 1)


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor needs a C++ compiler",
)
@pytest.mark.nightly("a minute: Inductor compiles C++")
@pytest.mark.ranks(2, fresh=True, deadline=280)
def test_functional_collectives_compiled_by_inductor(world_size: int) -> None:
    x = integers(dist.get_rank(), 10, f32)
    expected = compiled_step(x, world_size)
    step = torch.compile(compiled_step, backend="inductor", fullgraph=True)
    for _ in range(2):
        assert_bits(step(x, world_size), expected + 0)


# --- profiler, debug -----------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_profiler_events_have_names_and_shapes(backend: str, world_size: int) -> None:
    me = dist.get_rank()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.broadcast(torch.ones(5), 0)
        dist.all_gather([torch.ones(2) for _ in range(world_size)], torch.ones(2))
        dist.reduce(torch.ones(6), 0)
        gathered = [torch.ones(7) for _ in range(world_size)] if me == 0 else None
        dist.gather(torch.ones(7), gathered, dst=0)
        scattered = [torch.ones(8) for _ in range(world_size)] if me == 0 else None
        dist.scatter(torch.ones(8), scattered, src=0)
        dist.all_to_all_single(torch.ones(world_size * 2), torch.ones(world_size * 2))
        dist.barrier()
        if me == 0:
            dist.send(torch.ones(9), 1)
        else:
            dist.recv(torch.ones(9), 0)
    events = {e.name: e for e in profiler.events()}
    expected = {
        "all_reduce": [3, 4],
        "broadcast": [5],
        "all_gather": [2],
        "reduce": [6],
        "gather": [7],
        "scatter": [8],
        "all_to_all": [2 * world_size],
        "send" if me == 0 else "recv": [9],
    }
    for name, shape in expected.items():
        event = events.get(f"{backend}:{name}")
        assert event is not None, (name, sorted(n for n in events if backend in n))
        if me == 0 or name != "scatter":
            assert shape in [list(s) for s in event.input_shapes], (name, event.input_shapes)
        assert event.is_async, name
        assert event.cpu_time_total >= 0
    assert any("barrier" in n for n in events)


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.parametrize(
    "name", ["step.json.gz", nightly("step.json", "the test below has a plain file")]
)
@pytest.mark.ranks(2)
def test_a_trace_shows_encode_wire_and_decode_of_each_bucket(
    world_size: int, name: str, shared: str
) -> None:
    ddp = DDP(
        torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(3)]), bucket_cap_mb=0.1
    )
    hook = q7x2.attach(ddp, q7x2.Quantize("int8"))
    x = torch.randn(4, 200)
    for _ in range(2):  # DDP makes its buckets anew after the first step
        ddp(x).sum().backward()
    path = pathlib.Path(shared) / f"rank{dist.get_rank()}-{name}"
    buckets = hook.stats.buckets
    hook.trace()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        ddp(x).sum().backward()
    profiler.export_chrome_trace(str(path))
    assert q7x2.observe.add_to_trace(path, hook) >= hook.stats.buckets - buckets > 1
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events = trace["traceEvents"]
    bucket_of = {
        event["tid"]: event["args"]["name"].split()[2]
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"].startswith("q7x2 bucket")
    }
    assert len(set(bucket_of.values())) == hook.stats.buckets - buckets
    backward = next(e for e in events if "evaluate_function" in e["name"])
    for bucket in sorted(set(bucket_of.values())):
        slices = [e for e in events if e.get("ph") == "X" and bucket_of.get(e["tid"]) == bucket]
        names = {e["name"] for e in slices}
        assert {"encode", "decode", "collective (lane 0)"} <= names, names
        of_all: list[set[str]] = [set()] * world_size
        dist.all_gather_object(of_all, names)
        assert "wire" in set.union(*of_all)  # who comes last need not wait
        assert all(e["ts"] >= backward["ts"] for e in slices), "not on the profiler's clock"
    for track in bucket_of:
        open_until: list[float] = []
        spans = [(e["ts"], e["dur"]) for e in events if e.get("ph") == "X" and e["tid"] == track]
        for begin, length in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or begin + length <= open_until[-1] + 1e-3, "crosses another one"
            open_until.append(begin + length)


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.ranks(1)
def test_what_cannot_be_added_to_a_trace(shared: str) -> None:
    hook = q7x2.attach(DDP(torch.nn.Linear(2, 2)), q7x2.Quantize("int8"))
    path = pathlib.Path(shared) / "step.json"
    with pytest.raises(FileNotFoundError):
        q7x2.observe.add_to_trace(path, hook)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"is no trace that torch\.profiler has exported"):
        q7x2.observe.add_to_trace(path, hook)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sum()
    profiler.export_chrome_trace(str(path))
    with pytest.raises(ValueError, match=r"call hook\.trace\(\) before the step"):
        q7x2.observe.add_to_trace(path, hook)
    before = path.read_bytes()
    assert q7x2.observe.add_to_trace(path) == 0
    assert len(path.read_bytes()) <= len(before)  # no operations, and JSON without spaces


@pytest.mark.ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_debug_detail(world_size: int) -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    tensor = integers(dist.get_rank(), 100, f32)
    dist.all_reduce(tensor)
    assert_bits(tensor, sum(integers(r, 100, f32) for r in range(world_size)))
    gathered = torch.zeros(2 * world_size)
    dist.all_gather_into_tensor(gathered, torch.full((2,), float(dist.get_rank())))
    assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0]
    ddp = DDP(Plain())
    loss_of(ddp, batch(dist.get_rank(), 0)).backward()
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])
    dist.barrier()


@pytest.mark.ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_debug_detail_finds_mismatches() -> None:
    size = 10 + dist.get_rank()
    with pytest.raises(RuntimeError, match=r"(?i)mismatch"):
        dist.all_reduce(torch.ones(size))
