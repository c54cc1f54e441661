"""Hooks that compress momenta: EF21 and the hook of 1-bit Adam, over any compressor."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    attached,
    backward,
    exact,
    give,
    gradient_of,
    gradients,
    linear,
    net,
    residuals,
    sum_over_ranks,
)
from torch.nn.parallel import DistributedDataParallel as DDP
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks

CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}

# Each loses much of a matrix of 16 x 32.
COMPRESSORS: dict[str, dict[str, Any]] = {
    "codec": {"codec": "int2:g=32"},
    "top-k": {"hook": q7x2.TopK(0.05, start_iter=0)},
    "powersgd": {"hook": q7x2.PowerSGD(rank=1, start_iter=0, min_compression_rate=1)},
    "onebit": {"hook": q7x2.OneBit(start_iter=0)},
}


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.ranks(*FEW)
def test_ef21_has_sent_and_holds_back_the_mean_of_the_momenta(name: str, world_size: int) -> None:
    """h, which all have, and the residuals are together the mean of what each rank computes."""
    ddp, hook = attached(q7x2.EF21(**COMPRESSORS[name], momentum=0.8), linear())
    momenta = [torch.zeros(16, 32, dtype=torch.double) for _ in range(world_size)]
    losses = []
    for step in range(30):
        batch = step if step < 4 else 0  # gradients settle
        for rank in range(world_size):
            momenta[rank] = 0.8 * momenta[rank] + 0.2 * gradient_of(rank, batch).double()
        reduced = give(ddp, gradient_of(dist.get_rank(), batch)).double()
        mean = sum(momenta) / world_size
        left = sum_over_ranks(residuals(hook)["weight"])
        assert_close(reduced + left, mean, step, **CLOSE)
        assert_same_on_all_ranks([reduced])
        losses.append(float((reduced - mean).norm() / mean.norm()))
    assert losses[0] > 1e-3  # much is lost at first
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.ranks(2)
def test_ef21_without_loss_is_the_momentum_of_all_parameters() -> None:
    """Vectors travel whole beside the matrices, and the optimizer gets the same of them."""
    ddp, _ = attached(q7x2.EF21("fp32", momentum=0.5), bucket_cap_mb=0.01)
    plain = DDP(net())
    expected: dict[str, torch.Tensor] = {}
    for step in range(3):
        for model in (ddp, plain):
            model.zero_grad()
            backward(model, step)
        for name, gradient in gradients(plain).items():
            expected[name] = 0.5 * expected.get(name, 0) + 0.5 * gradient
        for name, got in gradients(ddp).items():
            assert_close(got, expected[name], (step, name), **CLOSE)


@pytest.mark.ranks(2)
def test_ef21_sends_gradients_in_full_precision_and_goes_on_from_their_momentum() -> None:
    options = q7x2.EF21(hook=q7x2.Quantize("int2:g=32", start_iter=2, burst_every=3), momentum=0.5)
    ddp, hook = attached(options, linear())
    momentum: Any = 0.0
    for step in range(8):
        mean = sum(gradient_of(rank, step) for rank in range(2)) / 2
        before = hook.state_dict()["shared"]["momentum"]["weight"]
        reduced = give(ddp, gradient_of(dist.get_rank(), step))
        if step < 2 or (step - 2) % 3 == 2:
            assert_close(reduced, mean, step, **CLOSE)
            momentum = 0.5 * before + 0.5 * mean
            after = hook.state_dict()
            assert_close(after["shared"]["momentum"]["weight"], momentum, step, **CLOSE)
            (local,) = after["local"].values()
            assert local["residual"]["weight"].abs().max() == 0
            assert local["deviation"]["weight"].abs().max() == 0
        else:
            assert (reduced - mean).norm() > 0.1 * mean.norm(), step


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.ranks(2)
def test_ef21_stays_true_after_a_step_that_is_undone(scaler: bool) -> None:
    """With Inf on one rank. What is dropped with it must leave no offset in the momentum."""
    ddp, hook = attached(
        q7x2.EF21("int2:g=32", momentum=0.5), linear(), attach=exact() if scaler else {}
    )
    for step in range(3):
        give(ddp, gradient_of(dist.get_rank(), step))
    before = hook.state_dict()
    give(ddp, gradient_of(dist.get_rank(), 3).fill_(torch.inf if dist.get_rank() else 1.0))
    after = hook.state_dict()
    me = f"rank_{dist.get_rank()}"
    assert_bits(after["shared"]["momentum"]["weight"], before["shared"]["momentum"]["weight"])
    for kind in ("residual", "deviation"):
        kept = after["local"][me][kind]["weight"]
        if scaler:
            assert_bits(kept, before["local"][me][kind]["weight"], kind)
        else:
            assert kept.abs().max() == 0
    for _ in range(40):
        reduced = give(ddp, gradient_of(dist.get_rank(), 0))
    mean = sum(gradient_of(rank, 0) for rank in range(2)) / 2
    assert (reduced - mean).norm() < 0.02 * mean.norm()


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.ranks(2)
def test_one_bit_adam_compresses_its_momentum_by_any_hook(name: str) -> None:
    """The momentum and the residuals are what went in, and vectors have the same momentum."""
    ddp, plain = DDP(net()), DDP(net())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.0, start_iter=2, **COMPRESSORS[name])
    names = {p: n for n, p in ddp.module.named_parameters()}
    held: dict[str, torch.Tensor] = {}
    for step in range(5):
        moments = {names[p]: state["exp_avg"].clone() for p, state in optimizer.state.items()}
        for model in (ddp, plain):
            model.zero_grad()
            backward(model, step)
        mean, reduced = gradients(plain), gradients(ddp)
        (local,) = optimizer.hook.state_dict()["local"].values()
        left = {each: sum_over_ranks(r) for each, r in local["residual"].items()}
        for each, gradient in reduced.items():
            if step < 2:
                assert_bits(gradient, mean[each], (step, each))
                continue
            went_in = 0.9 * moments[each].double() + 0.1 * mean[each] + held.get(each, 0)
            assert_close(gradient.double() + left.get(each, 0), went_in, (step, each), **CLOSE)
        held = left
        optimizer.step()
    assert optimizer.is_frozen
    assert 0 < len(left) < len(reduced)
    assert any(tensor.norm() > 0 for tensor in left.values())
    for each, moment in optimizer.hook.state_dict()["shared"]["momentum"].items():
        assert_close(moment, optimizer.state[ddp.module.get_parameter(each)]["exp_avg"], each)


@pytest.mark.ranks(2)
def test_one_bit_adam_with_top_k_begins_in_full_precision() -> None:
    """The stages of top-k would give the second moments selections."""
    ddp, plain = DDP(linear()), DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.0, hook=q7x2.TopK(0.01), start_iter=3)
    for step in range(3):
        gradient = gradient_of(dist.get_rank(), step)
        assert_bits(give(ddp, gradient), give(plain, gradient), step)
        optimizer.step()
    give(ddp, gradient_of(dist.get_rank(), 3))
    assert optimizer.is_frozen
    assert (ddp.module.weight.grad != 0).sum() <= 2 * 6


@pytest.mark.ranks(2)
def test_one_bit_adam_refreshes_its_second_moments() -> None:
    """Every third step after the freeze is AdamW's, on whole gradients."""
    ddp = DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(
        ddp, lr=1e-2, betas=(0.9, 0.99), codec="int4:g=32", start_iter=2, refresh_every=3
    )
    first, second, updates = torch.zeros(16, 32), torch.zeros(16, 32), 0
    for step in range(9):
        mean = sum(gradient_of(rank, step) for rank in range(2)) / 2
        reduced = give(ddp, gradient_of(dist.get_rank(), step)).clone()
        weight = ddp.module.weight.detach().clone()
        optimizer.step()
        if step < 2 or step in (4, 7):
            assert not optimizer.is_frozen
            assert_close(reduced, mean, step, **CLOSE)
            first = 0.9 * first + 0.1 * mean
            second, updates = 0.99 * second + 0.01 * mean**2, updates + 1
        else:
            assert optimizer.is_frozen
            assert (reduced - (0.9 * first + 0.1 * mean)).norm() < 0.5 * reduced.norm(), step
            first = reduced
        state = optimizer.state[ddp.module.weight]
        assert_close(state["exp_avg"], first, step, **CLOSE)
        assert_close(state["exp_avg_sq"], second, step, **CLOSE)
        root = (second / (1 - 0.99**updates)).sqrt() + 1e-8
        rate = 1e-2 / (1 - 0.9 ** (step + 1))
        assert_close(ddp.module.weight, weight - rate * first / root, step, **CLOSE)
    with pytest.raises(ValueError, match="refresh_every must be at least 2"):
        q7x2.optim.OneBitAdam(DDP(linear()), refresh_every=1)


@pytest.mark.ranks(2)
def test_only_a_hook_with_a_shared_momentum_takes_another_one() -> None:
    _, hook = attached(q7x2.Quantize("int8"), linear())
    with pytest.raises(ValueError, match=r"Quantize\(.* has no momentum that all ranks share"):
        hook.set_momentum({"weight": torch.zeros(16, 32)})
