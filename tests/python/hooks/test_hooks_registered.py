"""PyTorch's own hooks, registered with DDP itself: each is the attached one."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    BUCKETS,
    SMALL_BUCKETS,
    assert_states_equal,
    attached,
    backward,
    batch,
    everybodys_objects,
    net,
    parameters_of,
    sgd,
    train,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import FEW, assert_bits, assert_same_on_all_ranks


@pytest.mark.parametrize("options", BUCKETS.values(), ids=BUCKETS)
@pytest.mark.ranks(*FEW)
def test_registered_powersgd_is_the_attached_one(options: dict[str, Any]) -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=1, factors="fp32"), **options)
    train(ddp, sgd(ddp), range(4))
    state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    registered = DDP(net(), **options)
    registered.register_comm_hook(state, q7x2.comm_hooks.powerSGD_hook)
    its_hook = state.of(registered)
    train(registered, sgd(registered), range(4))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert_states_equal(its_hook.state_dict(), at_work.state_dict())
    rate, before, after = state.compression_stats()
    assert rate == before / after > 1


@pytest.mark.ranks(2)
def test_registered_without_its_model_it_cannot_be_saved() -> None:
    state = q7x2.comm_hooks.PowerSGDState(None, start_powerSGD_iter=1)
    ddp = DDP(net())
    ddp.register_comm_hook(state, q7x2.comm_hooks.powersgd_hook)
    train(ddp, sgd(ddp), range(3))
    assert_same_on_all_ranks(parameters_of(ddp))
    with pytest.raises(RuntimeError, match="before the first backward"):
        state.of(ddp)


def assert_registered_is_attached(name: str, options: Any) -> None:
    """PyTorch's hook of this name trains to the bits that the attached one trains to."""
    ddp, _ = attached(options, **SMALL_BUCKETS)
    registered = DDP(net(), **SMALL_BUCKETS)
    registered.register_comm_hook(None, getattr(q7x2.comm_hooks, name))
    for model in (ddp, registered):
        train(model, sgd(model), range(3))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("allreduce_hook", None),
        ("fp16_compress_hook", torch.float16),
        ("bf16_compress_hook", torch.bfloat16),
    ],
)
@pytest.mark.ranks(2)
def test_registered_dense_hooks_are_the_attached_ones(name: str, dtype: Any) -> None:
    assert_registered_is_attached(name, q7x2.Allreduce(dtype=dtype))


@pytest.mark.ranks(2)
def test_registered_batched_powersgd_is_the_attached_one() -> None:
    options = q7x2.PowerSGD(rank=2, start_iter=1, batched=True, factors="fp32")
    ddp, at_work = attached(options, **SMALL_BUCKETS)
    state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    registered = DDP(net(), **SMALL_BUCKETS)
    registered.register_comm_hook(state, q7x2.comm_hooks.batched_powerSGD_hook)
    for model in (ddp, registered):
        train(model, sgd(model), range(4))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert at_work.stats.message_bytes == state.stats.message_bytes
    named = q7x2.comm_hooks.PowerSGDState(None)
    assert named.stats.steps == 0
    saved = DDP(net())
    saved.register_comm_hook(named, q7x2.comm_hooks.batched_powerSGD_hook)
    hook = named.of(saved)
    backward(saved, 0)
    assert hook.steps == 1
    hook.load_state_dict(hook.state_dict())
    used = q7x2.comm_hooks.PowerSGDState(None)
    ddp = DDP(net())
    ddp.register_comm_hook(used, q7x2.comm_hooks.powerSGD_hook)
    backward(ddp, 0)
    with pytest.raises(RuntimeError, match="powerSGD_hook's: make another one"):
        q7x2.comm_hooks.batched_powerSGD_hook(used, None)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("quantization_pertensor_hook", "int8:g=1024:minmax"),
        ("quantization_perchannel_hook", "int8:g=512:minmax"),
    ],
)
@pytest.mark.ranks(2)
def test_registered_quantization_hooks_are_the_attached_ones(name: str, codec: str) -> None:
    options = q7x2.Quantize(codec, compress_vectors=True, use_error_feedback=False)
    assert_registered_is_attached(name, options)


@pytest.mark.parametrize("name", ["quantization_pertensor_hook", "fp16_compress_hook"])
@pytest.mark.ranks(*FEW)
def test_two_models_in_one_backward_share_a_registered_hook(name: str) -> None:
    models = [DDP(net(seed), **SMALL_BUCKETS) for seed in (0, 1)]
    for ddp in models:
        ddp.register_comm_hook(None, getattr(q7x2.comm_hooks, name))
    for step in range(20):
        x, y = batch(dist.get_rank(), step)
        sum(nn.functional.mse_loss(ddp(x), y) for ddp in models).backward()
    for ddp in models:
        assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])


@pytest.mark.ranks(4)
def test_post_local_sgd(world_size: int) -> None:
    """Global gradients for two steps, then those of pairs."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    state = q7x2.comm_hooks.PostLocalSGDState(None, pairs[mine], start_localSGD_iter=2)
    ddp = DDP(net(), **SMALL_BUCKETS)
    ddp.register_comm_hook(state, q7x2.comm_hooks.post_localSGD_hook)
    for step in range(4):
        ddp.zero_grad()
        backward(ddp, step)
        digests = everybodys_objects([p.grad.sum().item() for p in parameters_of(ddp)])
        assert digests[0] == digests[1]
        assert digests[2] == digests[3]
        assert (digests[0] == digests[2]) == (step < 2)
