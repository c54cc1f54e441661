"""Hooks on models without DistributedDataParallel: plain modules, and both ``replicate()``."""

from __future__ import annotations

import copy

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import HOOKS, assert_states_equal, backward, batch, net, sgd
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_close
from whole_models import (
    KINDS,
    STEADY,
    assert_same,
    gradients,
    made,
    start,
    weights,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_gradients_and_state_are_those_of_ddp(kind: str) -> None:
    """The same bits, where one bucket has all gradients."""
    for name in ("dense", "int8", "powersgd", "topk"):
        expected = DDP(start(kind))
        of_ddp = q7x2.attach(expected, HOOKS[name])
        model, options = made(kind, start(kind))
        hook = q7x2.attach(model, HOOKS[name], **options)
        for each, optimizer in ((expected, sgd(expected)), (model, sgd(model))):
            for step in range(4):
                optimizer.zero_grad()
                backward(each, step)
                if step < 3:
                    optimizer.step()
        assert_same(gradients(model), gradients(expected), (kind, name))
        assert hook.steps == 4
        assert_states_equal(hook.state_dict(), of_ddp.state_dict())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_gradients_stay_here_without_sync(kind: str) -> None:
    expected = DDP(start(kind))
    q7x2.attach(expected, q7x2.Quantize("int8"))
    model, options = made(kind, start(kind))
    hook = q7x2.attach(model, q7x2.Quantize("int8"), **options)
    for step in range(2):
        model.zero_grad()
        expected.zero_grad()
        with hook.no_sync():
            backward(model, 10 + step)
        with expected.no_sync():
            backward(expected, 10 + step)
        backward(model, 20 + step)
        backward(expected, 20 + step)
        assert_same(gradients(model), gradients(expected), step)
    assert hook.steps == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_gradients_add_up(kind: str) -> None:
    """A second backward adds the mean to what the first one has left."""
    model, options = made(kind, start(kind))
    q7x2.attach(model, q7x2.Allreduce(), **options)
    backward(model, 0)
    first = gradients(model)
    backward(model, 1)
    both = gradients(model)
    model.zero_grad()
    backward(model, 1)
    for name, gradient in gradients(model).items():
        assert_close(both[name], first[name] + gradient, name, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_clipping_sees_the_means(kind: str) -> None:
    expected = DDP(start(kind))
    q7x2.attach(expected, q7x2.Quantize("int8"))
    model, options = made(kind, start(kind))
    q7x2.attach(model, q7x2.Quantize("int8"), **options)
    backward(expected, 0)
    backward(model, 0)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    assert_close(norm, nn.utils.clip_grad_norm_(expected.parameters(), 0.01), rtol=1e-6, atol=1e-9)
    for name, gradient in gradients(expected).items():
        assert_close(gradients(model)[name], gradient, name, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_a_scaler_skips_a_step(kind: str) -> None:
    """Inf on one rank undoes the step on all; residuals follow the loss scale."""
    model, options = made(kind, start(kind))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    hook = q7x2.attach(model, q7x2.Quantize("int8"), scaler=scaler, **options)
    optimizer = sgd(model)
    for step in range(3):
        before = weights(model)
        optimizer.zero_grad()
        x, y = batch(dist.get_rank(), step)
        if step == 1 and dist.get_rank() == 0:
            x = x * float("inf")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        after = weights(model)
        changed = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert changed == (step != 1), step
    assert hook.stats.skipped_steps == 1
    assert scaler.get_scale() == 2.0**9


class Tied(nn.Module):
    """Two layers of one weight, a frozen layer, and checkpointed blocks."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.last = nn.Linear(64, 8)
        self._reentrant = reentrant

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.frozen(self.first(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._reentrant is None:
            return self.last(self.block(x))
        from torch.utils.checkpoint import checkpoint

        return self.last(checkpoint(self.block, x, use_reentrant=self._reentrant))


def tied(reentrant: bool | None = None) -> Tied:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tied(reentrant)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_tied_and_frozen_parameters_and_checkpointing(kind: str) -> None:
    expected = DDP(tied())
    q7x2.attach(expected, q7x2.Quantize("int8"))
    model, options = made(kind, tied(reentrant=False))
    q7x2.attach(model, q7x2.Quantize("int8"), **options)
    for step in range(3):
        expected.zero_grad()
        model.zero_grad()
        backward(expected, step)
        backward(model, step)
        assert_same(gradients(model), gradients(expected), step)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2, env=STEADY)
def test_compiled_models(kind: str, outside: bool) -> None:
    expected = DDP(start(kind))
    q7x2.attach(expected, q7x2.Quantize("int8"))
    model, options = made(kind, start(kind))
    if outside:
        model = torch.compile(model, backend="eager")
        q7x2.attach(model, q7x2.Quantize("int8"), **options)
    else:
        q7x2.attach(model, q7x2.Quantize("int8"), **options)
        model = torch.compile(model, backend="eager")
    for step in range(3):
        expected.zero_grad()
        model.zero_grad()
        backward(expected, step)
        backward(model, step)
        assert_same(gradients(model._orig_mod), gradients(expected), step)


@pytest.mark.ranks(2, env=STEADY)
def test_state_moves_between_kinds() -> None:
    """One state_dict: what one kind of model saved, another one goes on with."""
    models = {kind: made(kind, start("fsdp")) for kind in KINDS}
    hooks = {
        kind: q7x2.attach(model, q7x2.Quantize("int4"), **options)
        for kind, (model, options) in models.items()
    }
    backward(models["plain"][0], 0)
    state = hooks["plain"].state_dict()
    ends = []
    for kind, (model, _) in models.items():
        hooks[kind].load_state_dict(copy.deepcopy(state))
        model.zero_grad()
        backward(model, 1)
        ends.append(gradients(model))
        assert hooks[kind].steps == 2
    assert_same(ends[0], ends[1])
    assert_same(ends[0], ends[2])


@pytest.mark.ranks(2, env=STEADY)
def test_wrong_models() -> None:
    hook = q7x2.Quantize("int8")
    world = dist.group.WORLD
    with pytest.raises(TypeError, match=r"or a module and its group=\.\.\., got Net"):
        q7x2.attach(net(), hook)
    with pytest.raises(TypeError, match="another module, got int"):
        q7x2.attach(3, hook, group=world)
    for kind in ("composable", "fsdp"):
        model, _ = made(kind, start("fsdp"))
        with pytest.raises(ValueError, match=r"group is for a plain module: .*replicate\(\) on"):
            q7x2.attach(model, hook, group=world)
        with pytest.raises(ValueError, match="bucket_cap_mb is for a plain module"):
            q7x2.attach(model, hook, bucket_cap_mb=1.0)
        with pytest.raises(TypeError, match=r"Sharded is for an FSDPModule, got .*replicate\(\)"):
            q7x2.attach(model, q7x2.Sharded("int8"))
        with pytest.raises(ValueError, match="replica_group is for FSDP2's shards"):
            q7x2.attach(model, hook, replica_group=world)
        attached = q7x2.attach(model, hook)
        with pytest.raises(RuntimeError, match="already"):
            q7x2.attach(model, hook)
        with pytest.raises(TypeError, match="join is for a DistributedDataParallel or a plain"):
            attached.join()
        with pytest.raises(TypeError, match="rebind is for a DistributedDataParallel"):
            attached.rebind(model)
    with pytest.raises(TypeError, match="expected a plain module, but '0' is a DistributedData"):
        q7x2.attach(nn.Sequential(DDP(net())), hook, group=world)
    with pytest.raises(ValueError, match="no parameters that need gradients"):
        q7x2.attach(net().requires_grad_(False), hook, group=world)
    with pytest.raises(ValueError, match="bucket_cap_mb"):
        q7x2.attach(net(), hook, group=world, bucket_cap_mb=0)
    model = net()
    q7x2.attach(model, hook, group=world)
    with pytest.raises(RuntimeError, match="has a hook already"):
        q7x2.attach(model, hook, group=world)
    frozen = net()
    frozen.last.requires_grad_(False)
    q7x2.attach(frozen, hook, group=world)
    frozen.last.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"'last\.weight' needs gradients now, but was frozen"):
        backward(frozen, 0)
    sparse = nn.Sequential(nn.Embedding(8, 4, sparse=True))
    q7x2.attach(sparse, q7x2.Allreduce(), group=world)
    with pytest.raises(TypeError, match="is sparse: expected dense ones"):
        sparse(torch.zeros(2, dtype=torch.int64)).sum().backward()
