"""Reduce-scatters of FSDP2 models through a codec: the gradients that ranks get."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import (
    Optional,
    adam,
    backward,
    batch,
    exact_gradients,
    mesh_over,
    net,
    own_residuals,
    sharded,
    sum_of_residuals,
    train,
    whole_gradients,
    whole_weights,
)
from pairs import each_value
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from values import assert_bits, assert_close

BACKENDS = ("q7x2", "gloo")
CODECS = ("int8", "int6:g=64", "int4:g=128", "hadamard+int4:g=128")


@pytest.mark.parametrize(("codec", "backend"), each_value(CODECS, BACKENDS))
@pytest.mark.ranks(3)
def test_gradients_and_residuals_together_are_exact(codec: str, backend: str) -> None:
    """What was received in all steps and what is still kept is the sum of all gradients."""
    model = sharded(mesh_over(backend))
    hook = q7x2.attach(model, q7x2.Sharded(gradients=codec, weights="none"))
    weights = whole_weights(model)
    received: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    for step in range(4):
        model.zero_grad()
        backward(model, step)
        for name, gradient in whole_gradients(model).items():
            received[name] = received.get(name, 0) + gradient.double()
        for name, p in exact_gradients(step, range(3), weights).named_parameters():
            if p.grad is not None:
                exact[name] = exact.get(name, 0) + p.grad.double()
    kept = sum_of_residuals(hook)
    assert received.keys() == exact.keys()
    assert kept.keys() == {name for name in exact if weights[name].dim() > 1}
    for name, gradient in exact.items():
        if name in kept:
            assert not torch.allclose(received[name], gradient, rtol=1e-6, atol=1e-9), name
            assert_close(received[name] + kept[name], gradient, name, rtol=1e-4, atol=1e-6)
        else:
            assert_close(received[name], gradient, name, rtol=1e-4, atol=1e-6)
    assert hook.steps == 4
    assert hook.stats.buckets == 4 * 3
    assert hook.stats.message_bytes < hook.stats.gradient_bytes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_uncompressed_gradients_are_those_of_fsdp(backend: str) -> None:
    """Also in the first steps, and of parameters in full precision."""
    plain = sharded(mesh_over(backend))
    backward(plain, 0)
    for options in (
        q7x2.Sharded(gradients="none", weights="none"),
        q7x2.Sharded(gradients="int2", weights="none", full_precision=["*"]),
        q7x2.Sharded(gradients="int2", weights="none", start_iter=1),
        q7x2.Sharded(gradients="int8", weights="none", start_iter=1, use_error_feedback=False),
    ):
        model = sharded(mesh_over(backend))
        q7x2.attach(model, options)
        backward(model, 0)
        gradients = whole_gradients(model)
        for name, gradient in whole_gradients(plain).items():
            assert_close(gradients[name], gradient, (options, name), rtol=1e-5, atol=1e-8)


@pytest.mark.ranks(2)
def test_sums_inside_a_host_may_be_exact() -> None:
    plain = sharded(mesh_over("q7x2"))
    backward(plain, 0)
    model = sharded(mesh_over("q7x2"))
    hook = q7x2.attach(model, q7x2.Sharded(gradients="int2", weights="none", edges="host"))
    backward(model, 0)
    gradients = whole_gradients(model)
    for name, gradient in whole_gradients(plain).items():
        assert_close(gradients[name], gradient, name, rtol=1e-5, atol=1e-8)
    assert not any(residual.any() for residual in own_residuals(hook).values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_backward_does_not_wait_for_others(backend: str) -> None:
    """Rank 0 ends the backward of all modules before rank 1 begins its own."""
    model = sharded(mesh_over(backend))
    q7x2.attach(model, q7x2.Sharded(weights="int8", gradients="int4"))
    train(model, adam(model), range(1))
    store = dist.distributed_c10d._get_default_store()
    x, y = batch(dist.get_rank(), 1)
    x.requires_grad_()
    loss = nn.functional.mse_loss(model(x), y)
    if dist.get_rank() == 0:
        x.register_hook(lambda _: store.set(f"{backend} is at its end", "1"))
    else:
        store.wait([f"{backend} is at its end"])
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("way", ["no sync", "sync", "no sync, unsharded"])
@pytest.mark.ranks(2)
def test_gradients_accumulate(way: str) -> None:
    model = sharded(mesh_over("q7x2"))
    hook = q7x2.attach(model, q7x2.Sharded(gradients="int8", weights="int8"))
    weights = whole_weights(model)
    for micro in range(3):
        is_last = micro == 2
        model.set_is_last_backward(is_last)
        if way != "sync":
            model.set_requires_gradient_sync(is_last)
        if way == "no sync, unsharded":
            model.set_reshard_after_backward(is_last)
        backward(model, micro)
    exact: dict[str, torch.Tensor] = {}
    for micro in range(3):
        for name, p in exact_gradients(micro, range(2), weights).named_parameters():
            if p.grad is not None:
                exact[name] = exact.get(name, 0) + p.grad
    kept = sum_of_residuals(hook)
    for name, gradient in whole_gradients(model).items():
        total = gradient.double() + kept[name] if name in kept else gradient.double()
        assert_close(total, exact[name].double(), (way, name), rtol=1e-4, atol=1e-6)
    assert hook.steps == (3 if way == "sync" else 1)
    optimizer = adam(model)
    optimizer.step()
    train(model, optimizer, range(3, 5))


@pytest.mark.parametrize(
    ("dtype", "backend"), each_value([torch.bfloat16, torch.float16], BACKENDS)
)
@pytest.mark.ranks(2)
def test_gradients_are_reduced_in_other_dtypes(dtype: torch.dtype, backend: str) -> None:
    """FSDP divides those of float16 itself, so they are waited for."""
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    model = sharded(mesh_over(backend), mp_policy=policy)
    q7x2.attach(model, q7x2.Sharded(gradients="int8", weights="none"))
    weights = whole_weights(model)
    backward(model, 0)
    exact = exact_gradients(0, range(2), weights)
    for name, gradient in whole_gradients(model).items():
        expected = exact.get_parameter(name).grad
        error = (gradient - expected).norm() / expected.norm()
        assert error < 0.02, (name, error)


@pytest.mark.ranks(2)
def test_hooks_on_gradients_see_whole_sums() -> None:
    """An optimizer in backward: nobody may get zeros."""
    model = sharded(mesh_over("q7x2"))
    q7x2.attach(model, q7x2.Sharded(gradients="int8", weights="int8"))
    seen: dict[str, torch.Tensor] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.update({name: p.grad.to_local().clone()})
            )
    backward(model, 0)
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert_bits(seen[name], p.grad.to_local(), name)
            assert seen[name].any(), name


@pytest.mark.ranks(2)
def test_a_scaler_skips_steps_without_a_trace() -> None:
    model = sharded(mesh_over("q7x2"))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10**9)
    options = q7x2.Sharded(gradients="int4", weights="none")
    hook = q7x2.attach(model, options, scaler=scaler)
    backward(model, 0, scale=4.0)
    before = own_residuals(hook)
    scale = float("inf") if dist.get_rank() == 1 else 4.0
    backward(model, 1, scale=scale)
    assert hook.stats.skipped_steps == 1
    for name, residual in own_residuals(hook).items():
        assert_bits(residual, before[name], name)
    hook.scale_changed(4.0, 2.0)
    for name, residual in own_residuals(hook).items():
        assert_bits(residual, before[name] / 2, name)


@pytest.mark.ranks(2)
def test_a_backward_that_raised_leaves_nothing_behind() -> None:
    model = sharded(mesh_over("q7x2"))
    hook = q7x2.attach(model, q7x2.Sharded(gradients="int8", weights="none"))
    weights = whole_weights(model)

    def fail(_: Any) -> None:
        raise RuntimeError("in the middle")

    handle = model.blocks[0].outer.register_full_backward_pre_hook(lambda *_: fail(_))
    with pytest.raises(RuntimeError, match="in the middle"):
        backward(model, 0)
    handle.remove()
    if hasattr(model, "reset_iter_state"):
        model.reset_iter_state()
    else:
        pytest.skip("this version of FSDP2 cannot go on after a backward that raised")
    model.zero_grad()
    backward(model, 1)
    exact = exact_gradients(1, range(2), weights)
    for name, gradient in whole_gradients(model).items():
        if name.startswith("blocks.1"):  # were on their way; FSDP keeps the root's
            expected = exact.get_parameter(name).grad
            assert (gradient - expected).norm() < 0.02 * expected.norm(), name
    assert hook.steps == 1


@pytest.mark.ranks(2)
def test_modules_without_gradients() -> None:
    """A whole module may be unused; a part of one only if FSDP sends zeros for it."""
    x = torch.ones(4, 64)
    apart = Optional()
    mesh = mesh_over("q7x2")
    for layer in (apart.first, apart.second):
        fully_shard(layer, mesh=mesh)
    fully_shard(apart, mesh=mesh)
    hook = q7x2.attach(apart, q7x2.Sharded())
    for step in range(3):
        apart(x, both=step == 1).sum().backward()
        assert hook.steps == step + 1
    together = fully_shard(Optional(), mesh=mesh)
    q7x2.attach(together, q7x2.Sharded())
    with pytest.raises(RuntimeError, match="expected all or none of them"):
        together(x, both=False).sum().backward()
    zeros = fully_shard(Optional(), mesh=mesh)
    if hasattr(zeros, "set_reduce_scatter_unused_params"):
        zeros.set_reduce_scatter_unused_params(True)
        q7x2.attach(zeros, q7x2.Sharded())
        zeros(x, both=False).sum().backward()
        assert not zeros.second.weight.grad.to_local().any()


@pytest.mark.ranks(2)
def test_wrong_options_and_models() -> None:
    for wrong, said in (
        ({"gradients": "int5"}, "gradients: "),
        ({"gradients": "topk:0.1"}, "messages have one length"),
        ({"weights": "int8+lossless"}, "messages have one length"),
        ({"weights": "sign"}, "messages have one length"),
        ({"weights": "sumint8"}, "messages have one length"),
        ({"refresh_every": 0}, "refresh_every must be at least 1"),
        ({"edges": "some"}, "edges"),
        ({"replica_hook": "int8"}, "replica_hook must be a hook"),
    ):
        with pytest.raises(ValueError, match=said):
            q7x2.Sharded(**wrong)
    model = sharded(mesh_over("gloo"))
    with pytest.raises(ValueError, match="expected 'auto'"):
        q7x2.attach(model, q7x2.Sharded(edges="host"))
    with pytest.raises(ValueError, match="full_precision: no parameter's name matches"):
        q7x2.attach(model, q7x2.Sharded(full_precision=["head.*"]))
    with pytest.raises(ValueError, match="needs replica_group"):
        q7x2.attach(model, q7x2.Sharded(replica_hook=q7x2.Quantize()))
    with pytest.raises(TypeError, match="Sharded is for an FSDPModule"):
        q7x2.attach(nn.parallel.DistributedDataParallel(net()), q7x2.Sharded())
    codec = "int8" if dist.get_rank() == 0 else "int4"
    with pytest.raises(ValueError, match="all ranks must make the same hook"):
        q7x2.attach(model, q7x2.Sharded(weights=codec))
    hook = q7x2.attach(model, q7x2.Sharded())
    with pytest.raises(RuntimeError, match="has a hook of q7x2 already"):
        q7x2.attach(model, q7x2.Sharded())
    hook.detach()
    backward(model, 0)
    assert hook.steps == 0
    q7x2.attach(model, q7x2.Sharded())


class Nothing(nn.Module):
    """Its parameters have no elements, as those of an option that a model is built without.

    They are frozen: FSDP2 itself cannot reduce gradients without elements.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, 8), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x @ self.weight.T + self.bias).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_a_module_without_elements(backend: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Nothing(), nn.Linear(8, 8))
    mesh = mesh_over(backend)
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    hook = q7x2.attach(model, q7x2.Sharded(gradients="int8", weights="int8"))
    optimizer = adam(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    assert hook.steps == 3
    assert whole_gradients(model)["1.weight"].abs().sum() > 0
    assert whole_weights(model)["0.weight"].shape == (0, 8)
