"""What stands on c10d: DDP, FSDP2, DTensor, compiled collectives, profiler, checkpoints."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close, integers

f32 = torch.float32


class Net(nn.Module):
    """Several layers, one of them used only on demand, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 64)
        self.extra = nn.Linear(64, 64)
        self.last = nn.Linear(64, 4)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        x = self.norm(torch.relu(self.first(x)))
        x = torch.relu(self.second(x))
        if extra:
            x = torch.relu(self.extra(x))
        return self.last(x)


class Plain(nn.Module):
    """No batch statistics: the mean of the ranks' gradients is the gradient of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def batch(rank: int, step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 16, generator=generator), torch.randn(rows, 4, generator=generator)


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], **kwargs) -> torch.Tensor:
    return nn.functional.mse_loss(model(data[0], **kwargs), data[1])


def same_on_all_ranks(tensors: list[torch.Tensor], case: object = "") -> None:
    for i, tensor in enumerate(tensors):
        everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, tensor.contiguous())
        for other in everybody:
            assert_bits(other, everybody[0], (case, i))


# --- DDP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.01},
    ],
    ids=lambda o: "-".join(o) or "default",
)
@pytest.mark.ranks(2, 3)
def test_ddp_trains_as_one_process_on_the_whole_batch(world_size: int, options: dict) -> None:
    me = dist.get_rank()
    alone = Plain()
    ddp = DDP(copy.deepcopy(alone), **options)
    ours = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        ours.zero_grad()
        loss_of(ddp, batch(me, step)).backward()
        reference.zero_grad()
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
        pairs = zip(ddp.module.parameters(), alone.parameters(), strict=True)
        for i, (mine, wanted) in enumerate(pairs):
            assert_close(mine.grad, wanted.grad, (step, i), rtol=1e-5, atol=1e-6)
        same_on_all_ranks([p.grad for p in ddp.parameters()], step)
        ours.step()
        reference.step()
    same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_ddp_unused_parameters(world_size: int) -> None:
    """The unused layer differs between ranks; where no rank used it, it has no gradient."""
    me = dist.get_rank()
    ddp = DDP(Net(), find_unused_parameters=True)
    loss_of(ddp, batch(me, 0), extra=me == 0).backward()
    assert ddp.module.extra.weight.grad is not None
    same_on_all_ranks([ddp.module.extra.weight.grad, ddp.module.first.weight.grad])
    ddp.zero_grad(set_to_none=True)
    loss_of(ddp, batch(me, 1), extra=False).backward()
    assert ddp.module.extra.weight.grad is None
    same_on_all_ranks([ddp.module.first.weight.grad])


@pytest.mark.ranks(2)
def test_ddp_no_sync_accumulates(world_size: int) -> None:
    me = dist.get_rank()
    alone = Plain()
    ddp = DDP(copy.deepcopy(alone))
    with ddp.no_sync():
        loss_of(ddp, batch(me, 0)).backward()
    loss_of(ddp, batch(me, 1)).backward()
    for step in range(2):
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
    for mine, wanted in zip(ddp.parameters(), alone.parameters(), strict=True):
        assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2, 3)
def test_ddp_starts_from_rank_zero_and_broadcasts_buffers() -> None:
    torch.manual_seed(dist.get_rank())
    ddp = DDP(Net())
    same_on_all_ranks(list(ddp.parameters()))
    for step in range(2):
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
    ddp(batch(0, 5)[0])
    same_on_all_ranks([ddp.module.norm.running_mean])


@pytest.mark.ranks(2)
def test_ddp_in_bfloat16() -> None:
    ddp = DDP(Plain().bfloat16())
    x, y = batch(dist.get_rank(), 0)
    nn.functional.mse_loss(ddp(x.bfloat16()), y.bfloat16()).backward()
    same_on_all_ranks([p.grad for p in ddp.parameters()])


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook"])
@pytest.mark.ranks(2)
def test_ddp_with_torch_hooks(hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ddp = DDP(Plain())
    ddp.register_comm_hook(None, getattr(default_hooks, hook))
    for step in range(2):
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
    same_on_all_ranks([p.grad for p in ddp.parameters()], hook)


@pytest.mark.ranks(2)
def test_ddp_join_with_uneven_inputs(world_size: int) -> None:
    ddp = DDP(Plain())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for step in range(2 + 3 * dist.get_rank()):
            optimizer.zero_grad()
            loss_of(ddp, batch(dist.get_rank(), step)).backward()
            optimizer.step()
    same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_ddp_in_a_subgroup_each() -> None:
    group = [dist.new_group([r]) for r in range(2)][dist.get_rank()]
    torch.manual_seed(dist.get_rank())
    ddp = DDP(Plain(), process_group=group)
    loss_of(ddp, batch(dist.get_rank(), 0)).backward()
    dist.barrier()


@pytest.mark.ranks(2)
def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = DDP(Plain())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, batch(dist.get_rank(), step)).backward()
        optimizer.step()
    same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.ranks(2)
def test_sync_batch_statistics_by_hand() -> None:
    """torch's autograd-aware collectives, as SyncBatchNorm and sequence parallelism use them."""
    import torch.distributed.nn.functional as dist_nn

    x = torch.full((4,), float(dist.get_rank() + 1), requires_grad=True)
    total = dist_nn.all_reduce(x * 2)
    total.sum().backward()
    assert_bits(total.detach(), torch.full((4,), 6.0))
    assert_bits(x.grad, torch.full((4,), 4.0))


# --- FSDP2, DTensor ------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_fully_shard(world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    me = dist.get_rank()
    mesh = init_device_mesh("cpu", (world_size,))
    alone = Plain()
    model = copy.deepcopy(alone)
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ours = torch.optim.Adam(model.parameters(), lr=0.01)
    reference = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        ours.zero_grad()
        loss_of(model, batch(me, step)).backward()
        ours.step()
        reference.zero_grad()
        sum(loss_of(alone, batch(r, step)) / world_size for r in range(world_size)).backward()
        reference.step()
    for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(mine.full_tensor().detach(), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.ranks(4)
def test_hybrid_sharding() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = Plain()
    fully_shard(model, mesh=mesh)
    loss_of(model, batch(dist.get_rank(), 0)).backward()
    same_on_all_ranks([p.grad.full_tensor() for p in model.parameters()])


@pytest.mark.ranks(2, 3)
def test_dtensor_redistribute(world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
    )

    mesh = init_device_mesh("cpu", (world_size,))
    full = torch.arange(7 * 5, dtype=f32).reshape(7, 5)  # 7 rows do not divide evenly
    rows = distribute_tensor(full, mesh, [Shard(0)])
    assert_bits(rows.full_tensor(), full)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert_bits(columns.full_tensor(), full)
    assert_bits(columns.redistribute(mesh, [Replicate()]).to_local(), full)
    partial = DTensor.from_local(torch.ones(6, 4), mesh, [Partial()])
    assert_bits(
        partial.redistribute(mesh, [Replicate()]).to_local(), torch.full((6, 4), float(world_size))
    )
    assert_bits(
        partial.redistribute(mesh, [Shard(0)]).full_tensor(), torch.full((6, 4), float(world_size))
    )
    product = rows @ distribute_tensor(torch.eye(5), mesh, [Replicate()])
    assert_bits(product.full_tensor(), full)


@pytest.mark.ranks(4)
def test_device_mesh_of_two_dimensions() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=mesh.get_group("tp"))
    pair = dist.get_rank() // 2 * 2
    assert_bits(tensor, torch.full((3,), 2.0 * pair + 1))
    full = torch.arange(16, dtype=f32).reshape(4, 4)
    both = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    assert both.to_local().shape == (2, 2)
    assert_bits(both.full_tensor(), full)


@pytest.mark.ranks(2)
def test_tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    alone = Plain()
    model = parallelize_module(
        copy.deepcopy(alone),
        init_device_mesh("cpu", (2,)),
        {"layers.0": ColwiseParallel(), "layers.2": RowwiseParallel()},
    )
    x, _ = batch(0, 0)
    assert_close(model(x), alone(x), rtol=1e-5, atol=1e-6)


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
    same_on_all_ranks([p.grad for p in ddp.parameters()])
    dist.barrier()


@pytest.mark.ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_debug_detail_finds_mismatches() -> None:
    size = 10 + dist.get_rank()
    with pytest.raises(RuntimeError, match=r"(?i)mismatch"):
        dist.all_reduce(torch.ones(size))


# --- distributed checkpoint ----------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_checkpoint(shared: str, world_size: int) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    full = torch.arange(11 * 3, dtype=f32).reshape(11, 3)
    state = {
        "sharded": distribute_tensor(full, mesh, [Shard(0)]),
        "plain": torch.ones(5),
        "step": 7,
    }
    dcp.save(state, checkpoint_id=f"{shared}/checkpoint")
    loaded = {
        "sharded": distribute_tensor(torch.zeros(11, 3), mesh, [Shard(1)]),
        "plain": torch.zeros(5),
        "step": 0,
    }
    dcp.load(loaded, checkpoint_id=f"{shared}/checkpoint")
    assert_bits(loaded["sharded"].full_tensor(), full)
    assert_bits(loaded["plain"], torch.ones(5))
    assert loaded["step"] == 7


@pytest.mark.ranks(2)
def test_checkpoint_async(shared: str) -> None:
    """The staging thread communicates beside the main thread, in a group of its own."""
    import torch.distributed.checkpoint as dcp

    group = dist.new_group()
    state = {"weight": torch.full((1000,), 3.0)}
    future = dcp.async_save(state, checkpoint_id=f"{shared}/async", process_group=group)
    for _ in range(20):
        dist.all_reduce(torch.ones(1000))
    future.result()
    loaded = {"weight": torch.zeros(1000)}
    dcp.load(loaded, checkpoint_id=f"{shared}/async")
    assert_bits(loaded["weight"], torch.full((1000,), 3.0))


@pytest.mark.ranks(2)
def test_sharded_data_sampler_and_object_broadcast() -> None:
    """A seed chosen on rank 0 reaches everybody; the sampler's parts cover the data once."""
    from torch.utils.data import DistributedSampler

    seed = [torch.initial_seed() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(seed)
    sampler = DistributedSampler(range(10), seed=seed[0] % 1000)
    parts: list = [None, None]
    dist.all_gather_object(parts, list(sampler))
    assert sorted(parts[0] + parts[1]) == list(range(10))
