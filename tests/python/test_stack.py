"""What stands on c10d besides: functional and compiled collectives, profiler, debugging."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
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


INDUCTOR = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor needs a C++ compiler",
)


@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=[INDUCTOR, pytest.mark.slow])]
)
@pytest.mark.ranks(2, fresh=True, deadline=280)
def test_compiled_functional_collectives(world_size: int, compiler: str) -> None:
    x = integers(dist.get_rank(), 10, f32)
    expected = compiled_step(x, world_size)
    step = torch.compile(compiled_step, backend=compiler, fullgraph=True)
    for _ in range(2):
        assert_bits(step(x, world_size), expected + 0)


def plain_collectives(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@pytest.mark.ranks(2, fresh=True, deadline=120)
def test_compile_rewrites_plain_collectives(world_size: int) -> None:
    x = integers(dist.get_rank(), 10, f32)
    step = torch.compile(plain_collectives, backend="aot_eager", fullgraph=True)
    expected = sum(integers(r, 10, f32) for r in range(world_size)) * 2 + 1
    assert_bits(step(x), expected)


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
