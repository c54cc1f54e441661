"""DiLoCo by a quorum: like DiLoCo if nobody is late, tokens, codecs, stopped and slow ranks."""

from __future__ import annotations

import copy
import math
import os
import signal
from dataclasses import fields
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import batch, net
from q7x2.cadence import diloco_quorum
from torch import nn
from values import Clock, assert_bits, assert_close, assert_same_on_all_ranks, flat, pids

ONLY_Q7X2 = pytest.mark.beyond("gloo", "has no quorum")
SPARSE = "topk:0.05+hadamard+int2:g=128"
PLAIN: dict[str, Any] = {"sync_every": 3, "timeout": 40.0, "grace": 10.0}
OF_QUORUM = {option.name for option in fields(q7x2.cadence.QuorumOptions)}


def diloco_of(
    model: nn.Module, inner: torch.optim.Optimizer, **options: Any
) -> q7x2.cadence.DiLoCo:
    """A DiLoCo with a quorum; options are those of either."""
    options = PLAIN | options
    quorum = {name: options.pop(name) for name in OF_QUORUM & options.keys()}
    return q7x2.cadence.DiLoCo(model, inner, **options, quorum=q7x2.cadence.QuorumOptions(**quorum))


def made(**options: Any) -> tuple[nn.Module, q7x2.cadence.DiLoCo]:
    model = net()
    return model, diloco_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3), **options)


def train(
    model: nn.Module, diloco: Any, outer_steps: int, step: int = 0, most_steps: int = 1000
) -> None:
    last = step + most_steps
    while diloco.outer_steps < outer_steps and step < last:
        x, y = batch(dist.get_rank(), step)
        nn.functional.mse_loss(model(x), y).backward()
        diloco.step()
        diloco.zero_grad()
        step += 1


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_it_is_diloco_if_nobody_is_late() -> None:
    model, diloco = made()
    train(model, diloco, 3)
    diloco.finish()
    assert_same_on_all_ranks([flat(model)])
    other = net()
    inner = torch.optim.AdamW(other.parameters(), lr=1e-3)
    reference = q7x2.cadence.DiLoCo(other, inner, sync_every=3)
    for step in range(9):
        x, y = batch(dist.get_rank(), step)
        nn.functional.mse_loss(other(x), y).backward()
        reference.step()
        reference.zero_grad()
    assert_close(flat(model), flat(other), rtol=1e-4, atol=1e-5)
    stats = diloco.stats
    assert (stats.steps, stats.counted, stats.missed, stats.staleness) == (9, 3, 0, 0)


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_training_with_a_codec_goes_on_from_a_state_with_the_same_bits() -> None:
    options = {"codec": SPARSE, "residual_decay": 0.9, "full_precision": ["norm.*"]}
    model, diloco = made(**options)
    train(model, diloco, 2)
    state = diloco.state_dict()
    assert state["residual"].abs().max() > 0
    assert diloco.stats.message_bytes < 2 * 4 * state["weights"].numel() / 8
    again = net(seed=3)
    inner = torch.optim.AdamW(again.parameters(), lr=1e-3)
    inner.load_state_dict(copy.deepcopy(diloco.inner.state_dict()))
    resumed = diloco_of(again, inner, **options)
    resumed.load_state_dict(state)
    assert_bits(flat(again), flat(model))
    for each, trained in ((diloco, model), (resumed, again)):
        train(trained, each, 4, step=6)
        each.finish()
    assert_bits(flat(again), flat(model))
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_outer_gradients_are_weighted_by_tokens() -> None:
    model = nn.Linear(1, 1, bias=False)
    start = model.weight.detach().clone()
    dist.broadcast(start, 0)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    average = q7x2.cadence.OuterSGD(lr=1, momentum=0)
    diloco = diloco_of(model, inner, sync_every=1, outer=average)
    rank = dist.get_rank()
    model.weight.grad = torch.full((1, 1), float(rank))
    diloco.step(tokens=rank + 1)
    assert_close(model.weight.detach(), start - (0 * 1 + 1 * 2 + 2 * 3) / 6)
    diloco.finish()


@ONLY_Q7X2
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.ranks(3)
def test_what_a_late_rank_has_learnt_counts_later_within_the_bound(staleness: int) -> None:
    model = nn.Linear(1, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {
        "sync_every": 1,
        "outer": q7x2.cadence.OuterSGD(lr=1, momentum=0),
        "grace": 0.0,
        "need": 2,
    }
    diloco = diloco_of(model, inner, **options, staleness=staleness)
    start = model.weight.detach().clone()

    def step(gradient: float) -> None:
        model.weight.grad = torch.full((1, 1), gradient)
        diloco.step()

    if dist.get_rank() == 2:
        dist.barrier()
        step(6.0)  # the others have taken this outer step without it
        assert diloco.stats.staleness == 1
        assert_close(model.weight.detach(), start - 1 - 6 * staleness)
    else:
        step(1.0)
        assert_close(model.weight.detach(), start - 1)
        dist.barrier()
    diloco.timing.grace = 20.0
    step(3.0)
    diloco.finish()
    # The late rank's weight is that of its two steps if both count.
    shares = (3 + 3 + 3) / 3 if staleness == 0 else (3 + 3 + 2 * (6 + 3)) / 4
    assert_close(model.weight.detach(), start - 1 - shares)
    assert diloco.stats.staleness == 0


@ONLY_Q7X2
@pytest.mark.parametrize("stopped", [0, 2])
@pytest.mark.ranks(3, deadline=120)
def test_no_outer_step_waits_for_a_rank_that_is_stopped(stopped: int) -> None:
    model, diloco = made(grace=0.1, takeover=0.1, codec="int8")
    processes, rank = pids(), dist.get_rank()
    train(model, diloco, 1)
    if rank == stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    train(model, diloco, 5)
    if rank == 1:
        os.kill(processes[stopped], signal.SIGCONT)
    train(model, diloco, 8)
    diloco.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_slower_ranks_take_fewer_steps_if_balanced() -> None:
    clock, rank = Clock(), dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diloco_quorum, "time", clock)
        model, diloco = made(sync_every=6, balance=True)
        while diloco.outer_steps < 2:
            clock.passed += 3e6 if rank == 2 else 1e6  # so other differences do not count
            train(model, diloco, 2, most_steps=1)
    assert diloco.interval == (2 if rank == 2 else 6)
    assert diloco.stats.steps == (8 if rank == 2 else 12)
    diloco.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_an_outer_gradient_that_is_not_finite_raises_on_all_ranks() -> None:
    model, diloco = made(sync_every=1)
    before = flat(model)
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(p for p in model.parameters() if p.numel()).view(-1)[0] = math.inf
    with pytest.raises(FloatingPointError, match="outer gradient 0 has Inf or NaN"):
        diloco.step()
    assert_bits(flat(model), before)
    train(model, diloco, 2)
    diloco.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_mistakes_raise_when_it_is_made() -> None:
    for error, options in (
        ("sync_every with a quorum must be an int", {"sync_every": q7x2.policy.PostLocal(3, 4)}),
        ("staleness must not be negative", {"staleness": -1}),
        ("need must be at least 2", {"need": 1}),
        ("balance must be True or False", {"balance": 2}),
        ("divide_by_rate needs the rates", {"outer": q7x2.cadence.OuterSGD(divide_by_rate=True)}),
        ("expected one with error feedback", {"codec": "sign"}),
        ("cannot encode the data of one rank alone", {"codec": "sumint8"}),
        ("fragments needs outer steps of all ranks: .* must be 1, got 2", {"fragments": 2}),
        ("overlap needs outer steps of all ranks: .* must be 0, got 1", {"overlap": 1}),
        ("blend needs outer steps of all ranks", {"blend": 0.5}),
        ("inner_state needs outer steps of all ranks", {"inner_state": "average"}),
        ("edges needs outer steps of all ranks", {"edges": "all"}),
        ("the same DiLoCo, but rank 0", {"sync_every": 3 + dist.get_rank()}),
    ):
        with pytest.raises(ValueError, match=error):
            made(**options)
    old: dict[str, Any] = {"quorum": 3}
    with pytest.raises(TypeError, match="quorum must be of type QuorumOptions, got 3"):
        q7x2.cadence.DiLoCo(net(), torch.optim.SGD([torch.zeros(1)]), sync_every=3, **old)


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_what_belongs_to_one_kind_of_outer_steps_says_so() -> None:
    model, diloco = made()
    before = diloco.shared_weights
    assert (diloco.steps, diloco.outer_steps, diloco.residuals) == (0, 0, {})
    assert diloco.contributes
    train(model, diloco, 1)
    diloco.flush()
    assert any(not torch.equal(w, before[name]) for name, w in diloco.shared_weights.items())
    with pytest.raises(RuntimeError, match=r"make a new DiLoCo\(quorum=...\)"):
        diloco.rebind()
    other = net()
    plain = q7x2.cadence.DiLoCo(other, torch.optim.SGD(other.parameters()), sync_every=3)
    with pytest.raises(ValueError, match="tokens weighs outer gradients by a quorum only"):
        plain.step(tokens=3)
    with pytest.raises(RuntimeError, match="timing is that of a quorum"):
        _ = plain.timing
    with pytest.raises(q7x2.hooks.HookStateError, match="state of a DiLoCo with a quorum, got"):
        diloco.load_state_dict(plain.state_dict())
    with pytest.raises(q7x2.hooks.HookStateError, match="takes the state of this rank alone"):
        diloco.load_state_dict([diloco.state_dict()])
    with pytest.raises(q7x2.hooks.HookStateError, match="expected the state of a DiLoCo"):
        plain.load_state_dict(diloco.state_dict())
    diloco.finish()


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_state_of_an_earlier_version_still_loads() -> None:
    """0.1.0a1 called it the state of a ``QuorumDiLoCo``."""
    model, diloco = made()
    count = diloco.state_dict()["weights"].numel()
    weights = torch.arange(count) / (10 * count)
    momentum = torch.ones_like(weights)
    saved = {"outer_steps": 7, "weights": weights, "momentum": momentum, "residual": None}
    diloco.load_state_dict(saved)
    assert diloco.outer_steps == 7
    assert_bits(torch.cat([p.detach().flatten() for p in model.parameters()]).sort()[0], weights)
    train(model, diloco, 8)
    diloco.finish()
    assert_same_on_all_ranks([flat(model)])
