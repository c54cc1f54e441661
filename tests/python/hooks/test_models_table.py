"""The table of docs/hooks_models.md: what a hook supports on each kind of model.

Each line is a check that trains for a step or a few. A cell that says "yes" must pass it, and one
that says "no" must raise an error at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import ROOT
from torch import nn
from torch.distributed._composable.replicate import replicate as replicate_on_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_on_fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

RANKS = 4


class Net(nn.Module):
    """A tied weight, a frozen layer, a checkpointed block, a layer that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.extra, self.last = nn.Linear(32, 32), nn.Linear(32, 8)
        self.is_checkpointed = False

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        if self.is_checkpointed:
            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        return self.last(torch.tanh(self.extra(x)) if extra else x)


def net(tied: bool = False, frozen: bool = False) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net()
    if tied:
        model.second.weight = model.first.weight
    model.second.requires_grad_(not frozen)
    return model


def ddp(model: nn.Module, **options: Any) -> tuple[nn.Module, Any, dict[str, Any]]:
    return DDP(model, **options), q7x2.Quantize("int8"), {}


def composable(model: nn.Module, **options: Any) -> tuple[nn.Module, Any, dict[str, Any]]:
    return replicate_on_ddp(model, **options), q7x2.Quantize("int8"), {}


def on_fsdp(model: nn.Module) -> tuple[nn.Module, Any, dict[str, Any]]:
    mesh = DeviceMesh.from_group(dist.new_group(), "cpu", mesh_dim_names=("replicate",))
    return replicate_on_fsdp(model, mesh=mesh), q7x2.Quantize("int8"), {}


def shards(model: nn.Module) -> tuple[nn.Module, Any, dict[str, Any]]:
    mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
    return fully_shard(model, mesh=mesh), q7x2.Sharded("int8", weights="none"), {}


def hsdp(model: nn.Module) -> tuple[nn.Module, Any, dict[str, Any]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return fully_shard(model, mesh=mesh), q7x2.Quantize("int8"), {}


def plain(model: nn.Module) -> tuple[nn.Module, Any, dict[str, Any]]:
    return model, q7x2.Quantize("int8"), {"group": dist.group.WORLD}


# In the order of the columns.
KINDS: dict[str, Callable[..., tuple[nn.Module, Any, dict[str, Any]]]] = {
    "DDP": ddp,
    "`replicate()` on DDP": composable,
    "`replicate()` on FSDP2": on_fsdp,
    "`fully_shard`": shards,
    "HSDP": hsdp,
    "plain module": plain,
}
ON_FSDP = (on_fsdp, shards, hsdp)
ON_DDP = (ddp, composable)
Kind = Callable[..., Any]


def attached(kind: Kind, model: nn.Module, **options: Any) -> tuple[Any, Any]:
    made, hook, more = kind(model)
    return made, q7x2.attach(made, hook, **more, **options)


def loss_of(model: nn.Module, step: int, rank: int | None = None, **forward: Any) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(100 * step + rank))
    return nn.functional.mse_loss(model(x, **forward).float(), torch.tanh(x[:, :8]))


def inner(model: Any) -> Any:
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DDP) else model


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for name, p in inner(model).named_parameters()
        if p.grad is not None
    }


def expect(model: Any, reference: nn.Module, scale: float = 1.0) -> None:
    """The gradients are those of `reference`, which has seen the batches of all ranks, nearly."""
    found = gradients(model)
    wanted = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        error = (found[name] - gradient * scale).norm()
        assert error <= 0.1 * (gradient * scale).norm() + 1e-7, name


def mean_backward(reference: nn.Module, steps: list[int], **forward: Any) -> None:
    for step in steps:
        for rank in range(RANKS):
            (loss_of(reference, step, rank, **forward) / RANKS).backward()


def check_means(kind: Kind) -> None:
    model, hook = attached(kind, net())
    reference = net()
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)
    assert hook.steps == 1


def check_no_sync(kind: Kind) -> None:
    model, hook = attached(kind, net())
    reference = net()
    with hook.no_sync():
        loss_of(model, 0).backward()
    loss_of(model, 1).backward()
    mean_backward(reference, [0, 1])
    expect(model, reference)


def check_unused(kind: Kind) -> None:
    options = {"find_unused_parameters": True} if kind in ON_DDP else {}
    made, hook, more = kind(net(), **options)
    if kind in ON_FSDP:
        made.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    q7x2.attach(made, hook, **more)
    loss_of(made, 0, extra=dist.get_rank() == 0).backward()
    reference = net()
    for rank in range(RANKS):
        (loss_of(reference, 0, rank, extra=rank == 0) / RANKS).backward()
    expect(made, reference)


def check_uneven(kind: Kind) -> None:
    model, hook = attached(kind, net())
    with hook.join():
        for step in range(1 + dist.get_rank()):
            loss_of(model, step).backward()
    assert hook.steps == RANKS


def check_clipping(kind: Kind) -> None:
    model, _ = attached(kind, net())
    reference = net()
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    wanted = nn.utils.clip_grad_norm_(reference.parameters(), 1e-3)
    assert abs(norm - wanted) < 0.02 * wanted
    expect(model, reference)


def check_scaler(kind: Kind) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, hook = attached(kind, net(), scaler=scaler)
    for step in range(3):
        factor = float("inf") if step == 1 and dist.get_rank() == 0 else 1.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step)
        (scaler.scale(loss) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (hook.steps, hook.stats.skipped_steps) == (3, 1)


def check_checkpointing(kind: Kind) -> None:
    start = net()
    start.is_checkpointed = True
    model, _ = attached(kind, start)
    reference = net()
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)


def check_tied(kind: Kind) -> None:
    model, _ = attached(kind, net(tied=True))
    reference = net(tied=True)
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)


def check_frozen(kind: Kind) -> None:
    model, _ = attached(kind, net(frozen=True))
    reference = net(frozen=True)
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)


def check_compile_outside(kind: Kind) -> None:
    made, hook, more = kind(net())
    model = torch.compile(made, backend="eager")
    q7x2.attach(model, hook, **more)
    reference = net()
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)


def check_compile_inside(kind: Kind) -> None:
    start = net()
    start.block = torch.compile(start.block, backend="eager")  # type: ignore[method-assign]
    model, _ = attached(kind, start)
    reference = net()
    loss_of(model, 0).backward()
    mean_backward(reference, [0])
    expect(model, reference)


def check_state(kind: Kind) -> None:
    model, hook = attached(kind, net())
    loss_of(model, 0).backward()
    state = hook.state_dict()
    ends = []
    for _ in range(2):
        hook.load_state_dict(state)
        model.zero_grad()
        loss_of(model, 1).backward()
        ends.append({name: g.clone() for name, g in gradients(model).items()})
    assert hook.steps == 2
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def check_policy(kind: Kind) -> None:
    model, hook = attached(kind, net(), policy=q7x2.policy.Accumulate(2))
    reference = net()
    for step in range(2):
        with hook.accumulate():
            loss_of(model, step).backward()
    mean_backward(reference, [0, 1])
    expect(model, reference)
    assert hook.steps == 1


def check_rate(kind: Kind) -> None:
    optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
    model, hook = attached(kind, net(), optimizer=optimizer)
    loss_of(model, 0).backward()
    assert hook.steps == 1


def check_matrices(kind: Kind) -> None:
    made, hook, more = kind(net())
    powersgd = q7x2.PowerSGD(rank=2, start_iter=0)
    hook = powersgd if kind is not shards else q7x2.Sharded(replica_hook=powersgd)
    attached_hook = q7x2.attach(made, hook, **more)
    loss_of(made, 0).backward()
    assert attached_hook.steps == 1


def check_detach(kind: Kind) -> None:
    model, hook = attached(kind, net())
    loss_of(model, 0).backward()
    hook.detach()
    model.zero_grad()
    loss_of(model, 1).backward()
    reference = net()
    mean_backward(reference, [1])
    expect(model, reference)


def check_second_hook(kind: Kind) -> None:
    made, hook, more = kind(net())
    q7x2.attach(made, hook, **more).detach()
    again = q7x2.attach(made, hook, **more)
    loss_of(made, 0).backward()
    assert again.steps == 1


def check_rebind(kind: Kind) -> None:
    model, hook = attached(kind, net())
    loss_of(model, 0).backward()
    other, _, _ = kind(net())
    hook.rebind(other)
    loss_of(other, 1).backward()
    assert hook.steps == 2


# In the order of the lines.
CHECKS: dict[str, Callable[[Kind], None]] = {
    "means over all ranks": check_means,
    "`hook.no_sync()`": check_no_sync,
    "parameters that some ranks do not use": check_unused,
    "uneven inputs: `join`": check_uneven,
    "`clip_grad_norm_` of torch": check_clipping,
    "AMP: `autocast`, `GradScaler`": check_scaler,
    "activation checkpointing": check_checkpointing,
    "tied weights": check_tied,
    "frozen parameters": check_frozen,
    "`torch.compile` outside": check_compile_outside,
    "`torch.compile` inside": check_compile_inside,
    "`state_dict` and `load_state_dict`": check_state,
    "policies": check_policy,
    "residuals follow the learning rate: `optimizer=`": check_rate,
    "hooks of matrices: `PowerSGD(rank=2)`": check_matrices,
    "`hook.detach()`": check_detach,
    "another process group: `hook.rebind`": check_rebind,
    "another hook after `detach()`": check_second_hook,
}


def table() -> dict[str, list[str]]:
    """The cells of docs/hooks_models.md, by line."""
    lines = (ROOT / "docs" / "hooks_models.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    assert rows[0][1:] == list(KINDS)
    first = [row for row in rows if len(row) == 1 + len(KINDS)]  # the page has another table
    return {row[0]: [re.split(r"[ ,]", cell)[0] for cell in row[1:]] for row in first[2:]}


def test_the_table_has_all_checks() -> None:
    assert list(table()) == list(CHECKS)
    assert {cell for row in table().values() for cell in row} == {"yes", "no"}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.ranks(RANKS, fresh=True)
def test_each_cell(kind: str) -> None:
    column = list(KINDS).index(kind)
    wrong = []
    for name, check in CHECKS.items():
        cell, error = table()[name][column], None
        try:
            check(KINDS[kind])
        except (AssertionError, TypeError, ValueError, RuntimeError) as caught:
            error = caught
        is_refused = isinstance(error, (TypeError, ValueError, RuntimeError))
        if error is not None if cell == "yes" else not is_refused:
            wrong.append(f"{name}: {cell}, but {type(error).__name__}: {error}"[:300])
    assert not wrong, "\n".join(wrong)
