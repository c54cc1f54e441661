"""Hooks that send one bit per element: SignSGD and 1-bit Adam."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    attached,
    backward,
    give,
    gradient_of,
    linear,
    net,
    residuals,
    sum_over_ranks,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks, everybody

# --- signs ----------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_sign_is_the_majority_of_the_moving_averages() -> None:
    ddp, _ = attached(q7x2.SignSGD(momentum=0.5), linear())
    averages = [torch.zeros(16, 32) for _ in range(3)]
    for step in range(4):
        for rank in range(3):
            averages[rank] = 0.5 * averages[rank] + 0.5 * gradient_of(rank, step)
        expected = sum(a.sign() for a in averages).sign()
        assert_bits(give(ddp, gradient_of(dist.get_rank(), step)), expected, step)


@pytest.mark.ranks(2, 4)
def test_ties_of_signs_are_drawn(world_size: int) -> None:
    """Independent noise has no direction, and who has nothing to say does not vote for one."""
    ddp, _ = attached(q7x2.SignSGD(momentum=0.0), nn.Linear(64, 64, bias=False))

    def reduced(gradient: torch.Tensor) -> torch.Tensor:
        ddp.zero_grad()
        (ddp(torch.eye(64)).t() * gradient).sum().backward()
        return ddp.module.weight.grad

    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    votes = sum(each.sign() for each in everybody(noise))
    assert isinstance(votes, torch.Tensor)
    signs = reduced(noise)
    assert_bits(signs[votes != 0], votes.sign()[votes != 0])
    assert (votes == 0).sum() > 1000
    assert signs[votes == 0].mean().abs() < 0.15  # 1 / 32 at most expected
    alone = -torch.ones(64, 64) if dist.get_rank() == 0 else torch.zeros(64, 64)
    share = reduced(alone).mean()
    # Of two ranks: the other agrees, or there is a tie; of four more often.
    assert {2: -0.6, 4: -0.45}[world_size] < share < {2: -0.4, 4: -0.3}[world_size]
    assert_same_on_all_ranks([signs, ddp.module.weight.grad])


# --- Lion -----------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_distributed_lion_steps_by_the_majority_of_updates() -> None:
    ddp = DDP(linear())
    optimizer = q7x2.optim.DistributedLion(ddp, lr=0.01, betas=(0.7, 0.9), weight_decay=0.5)
    expected = ddp.module.weight.detach().clone()
    momenta = [torch.zeros(16, 32) for _ in range(3)]
    for step in range(4):
        votes = torch.zeros(16, 32)
        for rank in range(3):
            gradient = gradient_of(rank, step)
            votes += (0.7 * momenta[rank] + 0.3 * gradient).sign()
            momenta[rank] = 0.9 * momenta[rank] + 0.1 * gradient
        assert_bits(give(ddp, gradient_of(dist.get_rank(), step)), votes.sign(), step)
        optimizer.step()
        expected = expected * (1 - 0.01 * 0.5) - 0.01 * votes.sign()
        assert_close(ddp.module.weight, expected, step, rtol=1e-5, atol=1e-6)
    kept = optimizer.hook.state_dict()["local"][f"rank_{dist.get_rank()}"]["momentum"]["weight"]
    assert_close(kept * 3, momenta[dist.get_rank()], rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks([ddp.module.weight])


@pytest.mark.ranks(1)
def test_distributed_lion_arguments() -> None:
    ddp = DDP(linear())
    for wrong in ({"lr": -1.0}, {"weight_decay": -1.0}, {"betas": (1.0, 0.9)}):
        with pytest.raises(ValueError, match="must"):
            q7x2.optim.DistributedLion(ddp, **wrong)
    with pytest.raises(ValueError, match="must be parameters of ddp"):
        q7x2.optim.DistributedLion(ddp, params=[nn.Parameter(torch.zeros(3))])


# --- 1-bit Adam -----------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_one_bit_adam_is_adamw_until_it_freezes() -> None:
    ddp, plain = DDP(net()), DDP(net())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-2, weight_decay=0.1, start_iter=4)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(4):
        for model, o in ((ddp, optimizer), (plain, reference)):
            o.zero_grad()
            backward(model, step)
            o.step()
        assert not optimizer.is_frozen
    for p, q in zip(ddp.parameters(), plain.parameters(), strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-6)
    parameters = dict(ddp.module.named_parameters())
    for name, kept in optimizer.hook.state_dict()["shared"]["momentum"].items():
        moment = optimizer.state[parameters[name]]["exp_avg"]
        assert_close(kept, moment, name, rtol=1e-5, atol=1e-7)


@pytest.mark.ranks(2)
def test_one_bit_adam_goes_on_from_the_moments_of_clipped_gradients() -> None:
    """What a user does to gradients before the step is in the momentum that is sent after it."""
    ddp = DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.0, codec="fp32", start_iter=3)
    for step in range(3):
        give(ddp, gradient_of(dist.get_rank(), step))
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        optimizer.step()
    moment = optimizer.state[ddp.module.weight]["exp_avg"].clone()
    assert 0 < moment.norm() < 0.1
    mean = sum(gradient_of(rank, 3) for rank in range(2)) / 2
    close = {"rtol": 1e-5, "atol": 1e-6}
    assert_close(give(ddp, gradient_of(dist.get_rank(), 3)), 0.9 * moment + 0.1 * mean, **close)
    assert optimizer.is_frozen
    optimizer.hook.detach()
    assert not optimizer.is_frozen  # gradients are whole again
    assert_close(give(ddp, gradient_of(dist.get_rank(), 3)), mean, **close)


@pytest.mark.ranks(*FEW)
def test_one_bit_adam_sends_momentum_with_feedback() -> None:
    """m and the residuals are together what went in, and the update divides by frozen moments."""
    ddp = DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.1, betas=(0.9, 0.99), start_iter=2)
    me, world_size = dist.get_rank(), dist.get_world_size()
    second = None
    for step in range(6):
        if step >= 2:
            before = optimizer.hook.state_dict()
            owed = sum_over_ranks(before["local"][f"rank_{me}"]["residual"]["weight"])
            m = before["shared"]["momentum"]["weight"].double()
        applied = give(ddp, gradient_of(me, step)).clone()
        if step >= 2:
            assert optimizer.is_frozen
            mean = sum(gradient_of(rank, step) for rank in range(world_size)).double() / world_size
            left = sum_over_ranks(residuals(optimizer.hook)["weight"])
            expected = 0.9 * m + 0.1 * mean + owed
            assert_close(applied.double() + left, expected, step, rtol=1e-5, atol=1e-6)
            assert applied.abs().unique().numel() <= world_size  # a group and an owner: a scale
        weight = ddp.module.weight.detach().clone()
        optimizer.step()
        state = optimizer.state[ddp.module.weight]
        if step >= 2:
            assert_bits(state["exp_avg_sq"], second)
            root = (second / (1 - 0.99**2)).sqrt() + 1e-8
            rate = 0.1 / (1 - 0.9 ** (step + 1))
            assert_close(ddp.module.weight, weight - rate * applied / root, rtol=1e-5, atol=1e-6)
        second = state["exp_avg_sq"].clone()
    assert_same_on_all_ranks([ddp.module.weight])


@pytest.mark.ranks(2)
def test_one_bit_adam_resumes_to_the_bit() -> None:
    def steps(ddp: DDP, optimizer: Any, which: range) -> None:
        for step in which:
            optimizer.zero_grad()
            backward(ddp, step)
            optimizer.step()

    ddp = DDP(net())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-2, start_iter=2)
    steps(ddp, optimizer, range(5))
    saved = {k: v.clone() for k, v in ddp.state_dict().items()}
    states = optimizer.state_dict(), optimizer.hook.state_dict()
    states = torch.utils._pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, states
    )
    steps(ddp, optimizer, range(5, 8))

    again = DDP(net(seed=3))
    optimizer_again = q7x2.optim.OneBitAdam(again, lr=1e-2, start_iter=2)
    backward(again, 0)  # DDP settles its buckets
    again.load_state_dict(saved)
    optimizer_again.load_state_dict(states[0])
    optimizer_again.hook.load_state_dict(states[1])
    steps(again, optimizer_again, range(5, 8))
    for p, q in zip(again.parameters(), ddp.parameters(), strict=True):
        if p.numel():
            assert_bits(p, q)


@pytest.mark.ranks(2)
def test_one_bit_adam_takes_parameter_groups() -> None:
    """Each with its own rate and decay, before the freeze and after it."""
    ddp, plain = DDP(net()), DDP(net())

    def groups(model: DDP) -> list[dict[str, Any]]:
        vectors = [p for p in model.parameters() if p.dim() < 2]
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        still = {"params": matrices[:1], "lr": 0.0, "weight_decay": 0.0}
        return [{"params": vectors, "weight_decay": 0.0}, {"params": matrices[1:]}, still]

    optimizer = q7x2.optim.OneBitAdam(
        ddp, lr=1e-2, weight_decay=0.1, params=groups(ddp), start_iter=3
    )
    reference = torch.optim.AdamW(groups(plain), lr=1e-2, weight_decay=0.1)
    for step in range(5):
        if step == 3:
            for p, q in zip(ddp.parameters(), plain.parameters(), strict=True):
                assert_close(p, q, rtol=1e-5, atol=1e-6)
        for model, o in ((ddp, optimizer), (plain, reference)):
            o.zero_grad()
            backward(model, step)
            o.step()
    assert optimizer.is_frozen
    assert_bits(ddp.module.convolution.weight, net().convolution.weight)
    moved = (ddp.module.last.weight - net().last.weight).abs().max()
    assert moved > 1e-2
    two = [
        {"params": [p], "betas": (beta, 0.99)}
        for p, beta in zip(ddp.module.last.parameters(), (0.9, 0.8), strict=True)
    ]
    with pytest.raises(ValueError, match="first of betas must be the same in all groups"):
        q7x2.optim.OneBitAdam(ddp, params=two)
    with pytest.raises(ValueError, match="must be parameters of ddp"):
        q7x2.optim.OneBitAdam(DDP(net()), params=[nn.Parameter(torch.zeros(3))])


@pytest.mark.ranks(1)
def test_one_bit_adam_arguments() -> None:
    ddp = DDP(linear())
    for wrong in ({"lr": -1.0}, {"betas": (1.0, 0.9)}, {"start_iter": 0}):
        with pytest.raises(ValueError, match="must"):
            q7x2.optim.OneBitAdam(ddp, **wrong)


@pytest.mark.parametrize("refresh_every", [None, 5])
@pytest.mark.ranks(2)
def test_one_bit_adam_moves_no_element_that_has_had_no_gradient(refresh_every: int | None) -> None:
    """Rows of an embedding that are not used before the freeze, or never, and rows that are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ddp = DDP(nn.Embedding(24, 16))
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-2, start_iter=4, refresh_every=refresh_every)
    first = ddp.module.weight.detach().clone()
    never, late = slice(16, 24), slice(8, 16)
    for step in range(44):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        used = torch.arange(8 if step < 4 else 16)
        wanted = torch.randn(len(used), 16, generator=generator)
        (ddp(used) * wanted).sum().backward()
        optimizer.step()
    moved = (ddp.module.weight.detach() - first).abs()
    assert_bits(ddp.module.weight[never], first[never])
    assert moved[:8].max() < 1.0, moved[:8].max()
    assert moved[:8].min() > 0
    if refresh_every is None:
        assert_bits(ddp.module.weight[late], first[late])
    else:
        assert moved[late].min() > 0
