"""Gathers that overlap the next forward: the bits of DDP, whatever is done between two steps."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from forward_overlap_training import (
    FIXED,
    RING,
    ROUNDS_ONCE,
    Lion,
    MakeOptimizer,
    Pair,
    adamw,
    loss_of,
    momentum,
)
from hook_training import batch, net, parameters_of
from torch import nn
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks, flat

pytestmark = pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")


EARLY = q7x2.overlap.OverlapOptions(chunk_bytes=8 << 10, window=1, early=0.6)


class Wide(nn.Module):
    """Buckets of several slices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 1021), nn.Tanh(), nn.Linear(1021, 1021))
        self.last = nn.Linear(1021, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.layers(x)))


def wide() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Wide()


def lion(model: nn.Module) -> torch.optim.Optimizer:
    return Lion(model.parameters(), lr=1e-3)


# ---- the same bits as DDP ------------------------------------------------------------------------


def check_bits() -> None:
    for make, overlap in ((momentum, FIXED), (adamw, EARLY), (lion, FIXED)):
        pair = Pair(make, overlap=overlap)
        pair.train(range(4))
        pair.assert_equal((make.__name__, overlap))
        assert pair.attached.stats.steps == 3  # the first one is DDP's
    few = q7x2.overlap.OverlapOptions(chunk_bytes=1 << 20, window=2)
    pair = Pair(adamw, wide, few, bucket_cap_mb=25, gradient_as_bucket_view=True)
    pair.train(range(3))
    pair.assert_equal("wide")
    assert pair.attached.stats.chunks > 2


@pytest.mark.ranks(*FEW, 4, env=RING, stays=True, deadline=240, timeout=120)
def test_with_a_ring_weights_have_the_bits_of_ddp() -> None:
    check_bits()


@pytest.mark.ranks(3, env=ROUNDS_ONCE, stays=True, deadline=240, timeout=120)
def test_with_algorithms_that_round_once_weights_have_the_bits_of_ddp() -> None:
    check_bits()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.ranks(1, 3)
def test_replicas_are_equal_with_any_algorithm(dtype: torch.dtype) -> None:
    """Torch rounds the last elements of 16-bit tensors in another way than the others."""
    pair = Pair(adamw, partial(net, dtype=dtype))
    pair.train(range(4))
    pair.attached.flush()
    assert_same_on_all_ranks([flat(pair.ours)])
    rounding = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    assert_close(flat(pair.ours), flat(pair.plain), rtol=rounding, atol=rounding)


@pytest.mark.ranks(2)
def test_fused_steps_differ_in_the_last_bits_only() -> None:
    """Torch rounds the last elements of a tensor in another way, and shards end elsewhere."""

    def fused(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    pair = Pair(fused)
    pair.train(range(6))
    pair.attached.flush()
    assert_same_on_all_ranks([flat(pair.ours)])
    assert_close(flat(pair.ours), flat(pair.plain), rtol=1e-5, atol=1e-6)


# ---- who waits for what --------------------------------------------------------------------------


class Observed(nn.Module):
    """Notes the weights of its last layer when the first one, and when the last one is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)  # a bucket each
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        early = self.last.weight.detach().clone()
        y = self.last(x)
        self.seen.append((early, self.last.weight.detach().clone()))
        return y[:, :8]


def observed() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Observed()


@pytest.mark.ranks(2)
def test_a_module_waits_for_its_own_parameters_only() -> None:
    pair = Pair(model=observed)
    pair.train(range(4))
    seen, plain = pair.ours.module.seen, pair.plain.module.seen
    for step in (2, 3):
        assert_bits(seen[step][0], plain[step - 1][1], "not landed when the first layer is called")
        assert_bits(seen[step][1], plain[step][1], "landed when its own layer is called")
    pair.assert_equal()


class Unusual(nn.Module):
    """Parameters that are used without a call of their module, tied ones, and one number."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, batch_first=True)
        self.parts = nn.ParameterList([torch.full((64,), 0.5), torch.full((64,), 0.25)])
        self.unused_forward = nn.Linear(64, 64)
        self.back = nn.Linear(64, 64, bias=False)
        self.again = nn.Linear(64, 64, bias=False)
        self.again.weight = self.back.weight
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention(x.view(-1, 1, 64)).view(-1, 64)
        y = y * self.parts[0] + self.parts[1]
        y = nn.functional.linear(y, self.unused_forward.weight, self.unused_forward.bias)
        return (self.again(torch.tanh(self.back(y))) * self.scale)[:, :8]


def unusual() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Unusual()


@pytest.mark.ranks(2)
def test_parameters_that_no_call_of_their_module_announces() -> None:
    pair = Pair(adamw, unusual)
    pair.train(range(5))
    for evaluate in (torch.no_grad, torch.inference_mode):
        with evaluate():
            for model in (pair.plain, pair.ours):
                model.eval()
            x = batch(7, 7)[0]
            assert_bits(pair.ours.module(x), pair.plain.module(x), evaluate.__name__)
            for model in (pair.plain, pair.ours):
                model.train()
        pair.train(range(5, 6))
    pair.assert_equal()


# ---- between backward and the step ---------------------------------------------------------------


@pytest.mark.ranks(2)
def test_accumulation_schedules_and_gradients_that_are_dropped() -> None:
    pair = Pair(adamw)
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in pair.optimizers
    ]
    for step in range(6):
        for (ddp, optimizer), schedule in zip(pair.both(), schedules, strict=True):
            with ddp.no_sync():
                loss_of(ddp, 100 + step).backward()
            loss_of(ddp, step).backward()
            if step != 3:
                optimizer.step()
                schedule.step()
            optimizer.zero_grad()
    pair.assert_equal()
    assert pair.attached.stats.steps == 4


@pytest.mark.parametrize("norm_type", [2.0, 3.0, math.inf])
@pytest.mark.ranks(*FEW)
def test_gradients_are_clipped_by_the_norm_over_all_shards(norm_type: float) -> None:
    pair = Pair()
    for step in range(4):
        norms = []
        for ddp, optimizer in pair.both():
            loss_of(ddp, step).backward()
            if ddp is pair.ours:
                norms.append(pair.attached.clip_grad_norm_(0.05, norm_type))
            else:
                norms.append(nn.utils.clip_grad_norm_(parameters_of(ddp), 0.05, norm_type))
            optimizer.step()
            optimizer.zero_grad()
        assert norms[0] > 0.05  # or nothing is clipped
        assert_close(norms[1], norms[0], step, rtol=1e-4, atol=1e-6)
        assert_same_on_all_ranks([norms[1]])
    pair.attached.flush()
    assert_close(flat(pair.ours), flat(pair.plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.ranks(2)
def test_a_gradient_scaler_skips_the_same_steps_as_with_ddp(fused: bool) -> None:
    pair = Pair(lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused))
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2) for _ in range(2)]
    for step in range(6):
        for (ddp, optimizer), scaler in zip(pair.both(), scalers, strict=True):
            loss = loss_of(ddp, step)
            if step == 3 and dist.get_rank() == 1:
                loss = loss * math.inf  # on one rank, and so in its shards of no other rank
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scalers[1].get_scale() == scalers[0].get_scale(), step
    assert scalers[0].get_scale() != 256.0
    pair.assert_equal()


@pytest.mark.ranks(2)
def test_scattered_gradients_are_not_taken_for_gradients() -> None:
    pair = Pair()
    pair.train(range(2))
    loss_of(pair.ours, 2).backward()
    for use in (
        lambda: nn.utils.clip_grad_norm_(pair.ours.parameters(), 1.0),
        lambda: pair.optimizers[1].zero_grad(set_to_none=False),
        lambda: next(pair.ours.parameters()).grad.sum(),
        lambda: loss_of(pair.ours, 3).backward(),  # would add to them
    ):
        with pytest.raises(RuntimeError, match="scattered over the ranks"):
            use()


@pytest.mark.ranks(2)
def test_a_step_on_gradients_of_this_rank_alone_raises() -> None:
    pair = Pair()
    pair.train(range(2))
    with pair.ours.no_sync():
        loss_of(pair.ours, 2).backward()
    before = flat(pair.ours)
    with pytest.raises(RuntimeError, match="have not been reduced"):
        pair.optimizers[1].step()
    assert_bits(flat(pair.ours), before)
    with pytest.raises(RuntimeError, match="takes no closure"):
        pair.optimizers[1].step(lambda: 0.0)


@pytest.mark.ranks(2)
def test_steps_during_backward_refuse_what_comes_before_the_step() -> None:
    pair = Pair(overlap=EARLY)
    pair.train(range(3))
    loss_of(pair.ours, 3).backward()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    for use in (
        lambda: pair.attached.clip_grad_norm_(1.0),
        lambda: scaler.unscale_(pair.optimizers[1]),
        pair.optimizers[1].state_dict,
        pair.attached.finish,
    ):
        with pytest.raises(RuntimeError, match="must come after the step"):
            use()
    loss_of(pair.plain, 3).backward()
    for _, optimizer in pair.both():
        optimizer.step()
        optimizer.zero_grad()
    pair.train(range(4, 5))
    pair.assert_equal()
    loss_of(pair.ours, 5).backward()
    pair.optimizers[1].zero_grad()
    with pytest.raises(RuntimeError, match="a second backward must come"):
        loss_of(pair.ours, 6).backward()


# ---- errors in the middle ------------------------------------------------------------------------


class Failing(torch.autograd.Function):
    """Raises in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("on purpose")


@pytest.mark.ranks(2)
def test_training_goes_on_after_exceptions_in_forward_and_backward() -> None:
    pair = Pair()
    pair.train(range(3))
    for ddp, _ in pair.both():
        with pytest.raises(RuntimeError):  # in the middle of forward: some weights have landed
            ddp(torch.zeros(3, 5))
        with pytest.raises(ArithmeticError, match="on purpose"):
            Failing.apply(loss_of(ddp, 3)).backward()
    pair.train(range(4, 6))
    pair.assert_equal()


@pytest.mark.parametrize("make", [momentum, adamw])
@pytest.mark.ranks(2)
def test_copies_of_the_model_are_not_attached(make: MakeOptimizer) -> None:
    pair = Pair(make)
    pair.train(range(3))
    pair.attached.flush()
    twin = copy.deepcopy(pair.ours.module)
    assert_bits(flat(twin), flat(pair.plain))
    pair.train(range(3, 4))
    x = batch(0, 0)[0]
    twin(x)
    twin.state_dict()
    with pytest.raises(AssertionError):  # the copy has not trained on
        assert_bits(flat(twin), flat(pair.plain))
    pair.assert_equal()
