"""Hooks on models without DistributedDataParallel: plain modules, and both ``replicate()``."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    HOOKS,
    Net,
    assert_states_equal,
    backward,
    batch,
    local,
    net,
    net_of_fsdp,
    sgd,
)
from torch import nn
from torch.distributed._composable.replicate import replicate as replicate_on_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_on_fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

# Trials of algorithms would round the messages of two models differently.
STEADY = {"Q7X2_ALGO": "ring", "Q7X2_REFINE": "0"}
KINDS = ("plain", "composable", "fsdp")


def mesh() -> DeviceMesh:
    """Over a new group: torch keeps meshes whose groups have ended."""
    return DeviceMesh.from_group(dist.new_group(), "cpu", mesh_dim_names=("replicate",))


def made(kind: str, model: nn.Module, cap_mb: float = 25.0) -> tuple[nn.Module, dict[str, Any]]:
    """A model that all ranks hold whole, and what `attach` needs to know of it."""
    if kind == "plain":
        return model, {"group": dist.group.WORLD, "bucket_cap_mb": cap_mb}
    if kind == "composable":
        return replicate_on_ddp(model, bucket_cap_mb=cap_mb), {}
    return replicate_on_fsdp(model, mesh=mesh()), {}


def start(kind: str) -> Net:
    return net_of_fsdp() if kind == "fsdp" else net()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DDP) else model
    return {
        name: local(p.grad).clone() for name, p in inner.named_parameters() if p.grad is not None
    }


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [local(p.detach()).clone() for p in model.parameters()]


def assert_same(one: Any, other: Any, why: object = None) -> None:
    assert one.keys() == other.keys(), why
    for name in one:
        assert_bits(one[name], other[name], (why, name))


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


@pytest.mark.parametrize("name", sorted(HOOKS))
@pytest.mark.ranks(2, env=STEADY)
def test_buckets_of_a_plain_module_are_those_of_ddp(name: str) -> None:
    expected = DDP(net(), bucket_cap_mb=0.01)
    q7x2.attach(expected, HOOKS[name])
    model = net()
    hook = q7x2.attach(model, HOOKS[name], group=dist.group.WORLD, bucket_cap_mb=0.01)
    for step in range(4):
        for each in (expected, model):
            each.zero_grad()
            backward(each, step)
        assert_same(gradients(model), gradients(expected), step)
    assert hook.stats.buckets > 10, "buckets are small after the first step"


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


@pytest.mark.ranks(2, env=STEADY)
def test_unused_parameters_of_a_plain_module() -> None:
    """One that no rank uses keeps its gradient; one that some rank uses gets the mean."""
    model = net()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    reference = net()
    for step in range(3):  # before and after buckets were rebuilt
        model.zero_grad()
        backward(model, step, extra=False)
        assert model.extra.weight.grad is None
        assert model.last.weight.grad is not None
        model.zero_grad()
        backward(model, step, extra=dist.get_rank() == 1)
        reference.zero_grad()
        backward(reference, step, rank=1)
        assert_close(
            model.extra.weight.grad, reference.extra.weight.grad / 2, step, rtol=1e-6, atol=1e-7
        )


@pytest.mark.ranks(2, env=STEADY)
def test_a_rank_whose_loss_uses_no_parameter() -> None:
    model = net()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    x = batch(0, 0)[0].requires_grad_()
    out = model(x)
    (out * (0.0 if dist.get_rank() else 1.0)).sum().backward()
    norms = [g.norm() for g in gradients(model).values()]
    assert sum(norms) > 0


@pytest.mark.ranks(2, env=STEADY)
def test_unused_parameters_of_replicate_on_fsdp() -> None:
    model, _ = made("fsdp", start("fsdp"))
    q7x2.attach(model, q7x2.Allreduce())
    with pytest.raises(RuntimeError, match=r"set_reduce_scatter_unused_params\(True\)"):
        backward(model, 0, extra=False)
    model, _ = made("fsdp", start("fsdp"))
    q7x2.attach(model, q7x2.Allreduce())
    model.set_reduce_scatter_unused_params(True)
    backward(model, 0, extra=dist.get_rank() == 1)
    reference = net()
    backward(reference, 0, rank=1)
    found = local(model.extra.weight.grad)
    assert_close(found, reference.extra.weight.grad / 2, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(2, env=STEADY)
def test_uneven_inputs_of_a_plain_module() -> None:
    """As with DDP's join: ranks without inputs count as zeros, and all end with one model."""
    ends = []
    for kind in ("ddp", "plain"):
        model: Any = DDP(net()) if kind == "ddp" else net()
        options = {} if kind == "ddp" else {"group": dist.group.WORLD}
        hook = q7x2.attach(model, q7x2.Quantize("int8"), **options)
        optimizer = sgd(model)
        with model.join() if kind == "ddp" else hook.join():
            for step in range(2 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
        assert hook.steps == 4
        ends.append(weights(model))
    for one, other in zip(*ends, strict=True):
        assert_bits(one, other)


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


@pytest.mark.ranks(2, env=STEADY)
def test_a_gradient_that_comes_too_late_is_an_error() -> None:
    """A backward within a backward: the bucket of the tied weight fills up before its last use."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            from torch.utils.checkpoint import checkpoint

            x = x.requires_grad_()
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return x[:, :8]

    model = Twice()
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        backward(model, 0)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="use_reentrant=False"):  # again: it was reset
        backward(model, 0)


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
def test_precisions_of_replicate_on_fsdp() -> None:
    """Gradients that FSDP converts, and those that it divides by a factor of the user's."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    for reduced in (torch.bfloat16, torch.float16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        expected = replicate_on_fsdp(start("fsdp"), mesh=mesh(), mp_policy=policy)
        model = replicate_on_fsdp(start("fsdp"), mesh=mesh(), mp_policy=policy)
        q7x2.attach(model, q7x2.Allreduce())
        for each in (expected, model):
            backward(each, 0)
            backward(each, 1)
        for name, gradient in gradients(expected).items():
            assert_close(gradients(model)[name], gradient, name, rtol=2e-2, atol=1e-3)
    expected = replicate_on_fsdp(start("fsdp"), mesh=mesh())
    model = replicate_on_fsdp(start("fsdp"), mesh=mesh())
    q7x2.attach(model, q7x2.Allreduce())
    for each in (expected, model):
        each.set_gradient_divide_factor(1.0)
        backward(each, 0)
    for name, gradient in gradients(expected).items():
        assert_close(gradients(model)[name], gradient, name, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2, env=STEADY)
def test_modules_that_replicate_on_their_own() -> None:
    """Each is a bucket of its own; the means are dense ones, and `detach` gives FSDP its own."""

    def nested() -> Net:
        model = start("fsdp")
        one = mesh()
        for layer in model.layers:
            replicate_on_fsdp(layer, mesh=one)
        return replicate_on_fsdp(model, mesh=one)

    expected, model = nested(), nested()
    hook = q7x2.attach(model, q7x2.Allreduce())
    for step in range(2):
        for each in (expected, model):
            each.zero_grad()
            backward(each, step)
        assert_same(gradients(model), gradients(expected), step)
        assert hook.steps == step + 1
    assert hook.stats.buckets == 10
    hook.detach()
    for each in (expected, model):
        each.zero_grad()
        backward(each, 3)
    assert_same(gradients(model), gradients(expected), "detached")
    again = q7x2.attach(model, q7x2.Quantize("int8"))
    backward(model, 4)
    assert again.steps == 1


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
def test_all_ranks_begin_as_the_first() -> None:
    model = net(seed=dist.get_rank())
    model.register_buffer("count", torch.tensor(dist.get_rank()))
    q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD)
    for p, q in zip(model.parameters(), net(seed=0).parameters(), strict=True):
        assert_bits(p, q)
    assert model.count == 0


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.ranks(2, env=STEADY)
def test_a_failed_backward_of_a_plain_module_leaves_nothing_behind(steps: int) -> None:
    """Neither DDP nor FSDP2 goes on after one. What small buckets had on their way is undone."""

    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)
            self.fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            if self.fails:
                x.register_hook(lambda _: 1 / 0)
            return self.two(x)

    model = Failing()
    cap = 25.0 if steps == 2 else 0.001
    hook = q7x2.attach(model, q7x2.Allreduce(), group=dist.group.WORLD, bucket_cap_mb=cap)
    for fails in (False, True, False):
        model.fails = fails
        model.zero_grad()
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            backward(model, 0)
    found = everywhere(gradients(model)["one.weight"])
    assert_bits(found[0], found[1])
    assert hook.steps == steps


def everywhere(tensor: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return found


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
