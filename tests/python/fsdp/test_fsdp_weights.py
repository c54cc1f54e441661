"""All-gathers of FSDP2 models as differences: the weights that ranks compute with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import Gathered, adam, mesh_over, sharded, train, whole_weights
from pairs import each_value
from torch.distributed.fsdp import MixedPrecisionPolicy
from values import assert_bits, assert_same_on_all_ranks

BACKENDS = ("q7x2", "gloo")


def compressed(backend: str, **options: Any) -> tuple[Any, Any, q7x2.hooks.Attached]:
    """A model, the weights it computes with, its compression."""
    names = ("reshard_after_forward", "mp_policy")
    shard = {name: options.pop(name) for name in names if name in options}
    model = sharded(mesh_over(backend), **shard)
    hook = q7x2.attach(model, q7x2.Sharded(**options))
    return model, Gathered(model), hook


def forward(model: Any) -> torch.Tensor:
    output = model(torch.ones(2, 64))
    model.reshard()  # FSDP leaves the root as it is
    return output


def assert_exact(gathered: Gathered, model: Any) -> None:
    for name, weights in whole_weights(model).items():
        assert_bits(gathered.weights[name], weights, name)


def largest_error(gathered: Gathered, weights: dict[str, torch.Tensor]) -> float:
    return max((gathered.weights[name] - weights[name]).abs().max().item() for name in weights)


@pytest.mark.parametrize(
    ("codec", "backend"),
    each_value(["int8", "int4:g=64", "hadamard+int4:g=128", "bf16", "none"], BACKENDS),
)
@pytest.mark.ranks(3)
def test_all_ranks_compute_with_the_same_weights(codec: str, backend: str) -> None:
    model, gathered, hook = compressed(backend, gradients="none", weights=codec)
    optimizer = adam(model)
    errors = []
    for step in range(9):
        before = whole_weights(model)
        train(model, optimizer, range(step, step + 1))
        assert_same_on_all_ranks(list(gathered.weights.values()), (codec, step))
        errors.append(largest_error(gathered, before))
        for name, weights in before.items():
            if weights.dim() < 2 and codec != "bf16":
                assert_bits(gathered.weights[name], weights, (step, name))
    if codec == "none":
        assert max(errors) == 0
        return
    assert max(errors) > 0
    if codec != "bf16":
        assert errors[0] == 0  # the first gather sends them whole
        # Adam moves a weight by about 1e-3. Errors are a part of one step, and do not pile up.
        assert max(errors) < 5e-3, errors
        assert max(errors[-3:]) < 1e-3, errors
        assert hook.stats.weight_message_bytes < hook.stats.weight_bytes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_differences_need_few_bytes_and_backward_none(backend: str) -> None:
    model, _, hook = compressed(backend, gradients="none", weights="int8")
    optimizer = adam(model)
    train(model, optimizer, range(2))
    before = hook.stats
    train(model, optimizer, range(2, 4))
    after = hook.stats
    row = sum(p.to_local().numel() for p in model.parameters())
    assert after.gathers - before.gathers == 2 * 3
    assert after.repeats - before.repeats == 2 * 2  # the root stays unsharded
    assert after.refreshes == before.refreshes
    assert after.weight_message_bytes - before.weight_message_bytes < 2 * 1.3 * row


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_the_next_weights_are_sent_while_a_module_computes(backend: str) -> None:
    """Rank 0 begins the second block while rank 1 is still in the first one."""
    model, _, _ = compressed(backend)
    optimizer = adam(model)
    train(model, optimizer, range(2))
    store = dist.distributed_c10d._get_default_store()
    key = f"{backend}: the second block begins"
    if dist.get_rank() == 0:
        model.blocks[1].norm.register_forward_pre_hook(lambda *_: store.set(key, "1"))
    else:
        model.blocks[0].norm.register_forward_pre_hook(lambda *_: store.wait([key]))
    train(model, optimizer, range(2, 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.ranks(2)
def test_changes_from_outside_are_sent_whole(backend: str) -> None:
    model, gathered, hook = compressed(backend, gradients="none", weights="int4")
    optimizer = adam(model)
    train(model, optimizer, range(3))

    state = {name: 0.9 * tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    forward(model)
    assert_exact(gathered, model)

    refreshes = hook.stats.refreshes
    with torch.no_grad():
        if dist.get_rank() == 1:  # a little, on one rank, while nothing else has happened
            model.blocks[1].inner.weight.data.to_local()[0, 0] += 1e-3
    forward(model)
    assert hook.stats.refreshes == refreshes + 1
    assert_exact(gathered, model)
    forward(model)
    assert hook.stats.refreshes == refreshes + 1

    train(model, optimizer, range(3, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1)
    forward(model)
    assert_exact(gathered, model)

    train(model, optimizer, range(4, 5))
    forward(model)
    assert largest_error(gathered, whole_weights(model)) > 0
    hook.refresh()
    forward(model)
    assert_exact(gathered, model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.ranks(2)
def test_weights_recover_from_nan_and_inf(value: float) -> None:
    model, gathered, _ = compressed("q7x2", gradients="none", weights="int8")
    optimizer = adam(model)
    train(model, optimizer, range(2))
    weight = model.blocks[0].inner.weight
    kept = weight.detach().to_local().clone()
    with torch.no_grad():
        weight.to_local()[0, 0] = value
    forward(model)
    assert (~gathered.weights["blocks.0.inner.weight"].isfinite()).sum() == 2
    with torch.no_grad():
        weight.to_local().copy_(kept)
    forward(model)
    name = "blocks.0.inner.weight"
    assert_bits(gathered.weights[name], whole_weights(model)[name], name)


@pytest.mark.ranks(2)
def test_a_refresh_comes_after_so_many_steps() -> None:
    model, gathered, hook = compressed("q7x2", gradients="none", weights="int4", refresh_every=3)
    optimizer = adam(model)
    for step in range(7):
        before = whole_weights(model)
        train(model, optimizer, range(step, step + 1))
        assert (largest_error(gathered, before) == 0) == (step % 3 == 0), step
    assert hook.stats.refreshes == 3 * 3


@pytest.mark.parametrize(("reshard", "backend"), each_value([False, 2], BACKENDS))
@pytest.mark.ranks(4)
def test_weights_stay_or_are_gathered_again(reshard: int, backend: str) -> None:
    """However FSDP keeps them between forward and backward, a training is the same."""
    losses = {}
    for way in (True, reshard):
        model, gathered, _ = compressed(backend, reshard_after_forward=way)
        losses[way] = train(model, adam(model), range(4))
        assert_same_on_all_ranks(list(gathered.weights.values()))
    assert losses[True] == losses[reshard]


@pytest.mark.parametrize(("reduce", "backend"), each_value([None, torch.float32], BACKENDS))
@pytest.mark.ranks(2)
def test_mixed_precision(reduce: torch.dtype | None, backend: str) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    plain = sharded(mesh_over(backend), mp_policy=policy)
    expected = train(plain, adam(plain), range(10))
    model, gathered, _ = compressed(backend, mp_policy=policy)
    losses = train(model, adam(model), range(10))
    assert_same_on_all_ranks(list(gathered.weights.values()))
    assert all(weights.dtype == torch.bfloat16 for weights in gathered.weights.values())
    assert abs(sum(losses[-5:]) - sum(expected[-5:])) < 0.05 * sum(expected[-5:])
    for p in model.parameters():
        assert p.grad is None or p.grad.dtype == torch.float32


@pytest.mark.ranks(2)
def test_evaluation_between_steps() -> None:
    """Before the first training step and after it; repeated forwards send a flag alone."""
    model, gathered, hook = compressed("q7x2", weights="int8")
    optimizer = adam(model)
    with torch.no_grad():  # FSDP itself cannot begin in inference mode
        forward(model)
    train(model, optimizer, range(2))
    with torch.inference_mode():
        first = forward(model)
    sent = hook.stats.weight_message_bytes
    with torch.inference_mode():
        again = forward(model)
    assert hook.stats.weight_message_bytes == sent + 3
    assert_bits(first.clone(), again.clone(), "repeated")
    assert_same_on_all_ranks(list(gathered.weights.values()))
    train(model, optimizer, range(2, 4))


@pytest.mark.ranks(2)
def test_weights_must_not_change_before_backward() -> None:
    model, _, _ = compressed("q7x2")
    loss = model(torch.ones(2, 64)).sum()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    with pytest.raises(RuntimeError, match="changed between a forward and its backward"):
        loss.backward()
