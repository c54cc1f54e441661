"""Local SGD, post-local SGD and SlowMo as DiLoCo's options, and intervals that change."""

from __future__ import annotations

import time
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from diloco_training import WEIGHTS_ONLY, assert_replicas_equal, backward, flat, made, train
from hook_training import everybodys_objects, net
from q7x2.cadence.diloco_fragment import Flight
from torch import nn
from values import assert_bits, assert_close, assert_same_on_all_ranks


def sgd(lr: float = 0.05, **options: Any) -> tuple[nn.Module, q7x2.cadence.DiLoCo]:
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, q7x2.cadence.DiLoCo(model, inner, **options)


def mean(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


@pytest.mark.parametrize("inner_state", ["keep", "average"])
@pytest.mark.ranks(3)
def test_local_sgd_averages_weights_and_keeps_or_averages_momentum(inner_state: str) -> None:
    every = 3
    model, diloco = sgd(sync_every=every, outer=WEIGHTS_ONLY, inner_state=inner_state)
    mine = net()
    inner = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
    for step in range(2 * every):
        train(model, diloco, range(step, step + 1))
        backward(mine, step, dist.get_rank())
        inner.step()
        inner.zero_grad()
        if (step + 1) % every == 0:
            with torch.no_grad():
                for p in mine.parameters():
                    p.copy_(mean(p))
                    if inner_state == "average":
                        inner.state[p]["momentum_buffer"].copy_(
                            mean(inner.state[p]["momentum_buffer"])
                        )
    for (name, p), own in zip(model.named_parameters(), mine.parameters(), strict=True):
        assert_close(p.detach(), own.detach(), name, rtol=1e-4, atol=1e-6)
        buffers = [o.state[q]["momentum_buffer"] for o, q in ((diloco.inner, p), (inner, own))]
        assert_close(*buffers, name, rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(2)
def test_averaged_adam_has_equal_moments_on_all_ranks() -> None:
    model, diloco = made(sync_every=4, outer=WEIGHTS_ONLY, inner_state="average")
    train(model, diloco, range(4))
    states = diloco.inner.state.values()
    for moment in ("exp_avg", "exp_avg_sq"):
        assert_same_on_all_ranks([flat(state[moment] for state in states)])
    train(model, diloco, range(4, 5))
    mine, other = everybodys_objects(flat(state["exp_avg"] for state in states))
    assert not torch.equal(mine, other)


@pytest.mark.ranks(2)
def test_post_local_sgd_is_synchronous_sgd_at_first() -> None:
    """Momentum is linear: averages of weights and momentum are those of averaged gradients."""
    start, every = 5, 3
    model, diloco = sgd(
        sync_every=q7x2.policy.PostLocal(start, every), outer=WEIGHTS_ONLY, inner_state="average"
    )
    mine = net()
    inner = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
    for step in range(start):
        train(model, diloco, range(step, step + 1))
        backward(mine, step, dist.get_rank())
        for p in mine.parameters():
            p.grad = mean(p.grad)
        inner.step()
        inner.zero_grad()
    for (name, p), own in zip(model.named_parameters(), mine.parameters(), strict=True):
        assert_close(p.detach(), own.detach(), name, rtol=1e-4, atol=1e-6)
    assert diloco.stats.outer_steps == start
    train(model, diloco, range(start, start + 2 * every))
    assert diloco.stats.outer_steps == start + 2


@pytest.mark.ranks(2)
def test_slowmo_follows_the_formula_of_the_paper() -> None:
    """u = beta u + (x0 - mean x) / lr;  x0 = x0 - alpha lr u, with an inner rate that changes."""
    every, alpha, beta = 2, 0.8, 0.6
    outer = q7x2.cadence.OuterSGD(lr=alpha, momentum=beta, nesterov=False, divide_by_rate=True)
    model, diloco = sgd(sync_every=every, outer=outer)
    mine = net()
    inner = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
    start = {name: p.detach().clone() for name, p in mine.named_parameters()}
    slow = {name: torch.zeros_like(p) for name, p in start.items()}
    for step in range(4 * every):
        rate = 0.05 if step < 4 else 0.01
        diloco.inner.param_groups[0]["lr"] = inner.param_groups[0]["lr"] = rate
        train(model, diloco, range(step, step + 1))
        backward(mine, step, dist.get_rank())
        inner.step()
        inner.zero_grad()
        if (step + 1) % every == 0:
            with torch.no_grad():
                for name, p in mine.named_parameters():
                    slow[name] = beta * slow[name] + (start[name] - mean(p)) / rate
                    start[name] = start[name] - alpha * rate * slow[name]
                    p.copy_(start[name])
    for name, p in mine.named_parameters():
        assert_close(model.get_parameter(name).detach(), p.detach(), name, rtol=1e-3, atol=1e-5)


def test_slowmo_with_a_rate_of_zero_is_the_limit_of_the_formula() -> None:
    outer = q7x2.cadence.OuterSGD(lr=0.5, momentum=0.5, nesterov=False, divide_by_rate=True)
    vectors = [torch.ones(3), torch.full((3,), 0.25), torch.full((3,), 7.0)]
    outer.apply(*vectors, inner_rate=0.0)
    assert_bits(vectors[0], torch.full((3,), 1 - 0.5 * 0.25))
    assert_bits(vectors[2], torch.full((3,), 7.0))


# ---- intervals -----------------------------------------------------------------------------------


def facts(
    step: int = 0, step_seconds: float = 0.0, wire_seconds: float = 0.0
) -> q7x2.policy.CadenceFacts:
    return q7x2.policy.CadenceFacts(step, step_seconds, wire_seconds)


def test_an_interval_follows_the_bandwidth() -> None:
    interval = q7x2.policy.FollowBandwidth(share=0.1, least=2, most=40)
    assert interval(facts()) == 2
    assert interval(facts(9, step_seconds=0.5, wire_seconds=1.0)) == 20
    assert interval(facts(9, step_seconds=0.5, wire_seconds=1.01)) == 21
    assert interval(facts(9, step_seconds=0.5, wire_seconds=0.001)) == 2
    assert interval(facts(9, step_seconds=0.001, wire_seconds=1e9)) == 40


def test_an_interval_tightens_late() -> None:
    interval = q7x2.policy.Tighten(20, begin=100, end=200, last=0.1)
    assert [interval(facts(step)) for step in (0, 100, 150, 200, 999)] == [20, 20, 11, 2, 2]
    assert q7x2.policy.Tighten(3, begin=0, end=1, last=0.01)(facts(5)) == 1
    measured = q7x2.policy.Tighten(
        q7x2.policy.FollowBandwidth(share=0.1), begin=0, end=10, last=0.5
    )
    assert measured(facts(10, step_seconds=0.5, wire_seconds=1.0)) == 10


def test_an_interval_is_one_until_training_is_local() -> None:
    interval = q7x2.policy.PostLocal(10, q7x2.policy.Tighten(8, begin=20, end=30, last=0.5))
    assert [interval(facts(step)) for step in (0, 9, 10, 19, 30)] == [1, 1, 8, 8, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: q7x2.policy.FollowBandwidth(share=0), "share must be positive"),
        (lambda: q7x2.policy.FollowBandwidth(least=5, most=4), "most must be at least 5"),
        (lambda: q7x2.policy.Tighten(4, begin=5, end=5), "end must be at least 6"),
        (lambda: q7x2.policy.Tighten(4, begin=0, end=5, last=2.0), "last must be at most 1"),
        (lambda: q7x2.policy.Tighten("4", begin=0, end=5), "sync_every must be an int"),
        (lambda: q7x2.policy.PostLocal(-1, 4), "start must not be negative"),
    ],
)
def test_bad_intervals_raise_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_intervals_have_a_name_that_all_ranks_and_runs_share() -> None:
    from q7x2.policy.cadence import describe

    interval = q7x2.policy.Tighten(q7x2.policy.PostLocal(5, facts), begin=1, end=2)
    inner = "PostLocal(start=5, sync_every=test_local_sgd.facts)"
    name = f"Tighten(sync_every={inner}, begin=1, end=2, last=0.1)"
    assert describe(interval) == name
    assert describe(30) == "30"


class QuietMessage:
    """A message that arrives, and whose callback is called too late to be of use."""

    def get_future(self) -> torch.futures.Future:
        return torch.futures.Future()

    def wait(self) -> None:
        time.sleep(0.001)


def test_the_time_of_messages_is_known_when_they_have_been_waited_for() -> None:
    flight = Flight(torch.zeros(1), None, arrives=0)
    flight.send(QuietMessage)
    flight.land()
    seconds = flight.trip.seconds
    assert seconds >= 0.001
    flight.land()
    assert flight.trip.seconds == seconds


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.ranks(3)
def test_measured_intervals_are_equal_on_all_ranks(fragments: int) -> None:
    """Ranks measure different times, and share the facts."""
    seen: list[q7x2.policy.CadenceFacts] = []

    def interval(given: q7x2.policy.CadenceFacts) -> int:
        seen.append(given)
        return 2 + int(1e6 * given.step_seconds) % 3 + int(1e6 * given.wire_seconds) % 2

    model, diloco = made(sync_every=interval, fragments=fragments)
    train(model, diloco, range(24))
    assert len(seen) >= 4
    assert seen[0] == facts()
    assert all(given.step_seconds > 0 for given in seen[1:])
    assert seen[-1].wire_seconds > 0
    assert (
        everybodys_objects((seen, diloco.interval))
        == [(seen, diloco.interval)] * dist.get_world_size()
    )
    assert_replicas_equal(diloco)


@pytest.mark.ranks(2)
def test_ranks_that_decide_differently_are_told_and_keep_what_they_have() -> None:
    rank = dist.get_rank()
    model, diloco = made(sync_every=lambda given: 2 if given.steps == 0 else 2 + rank)
    train(model, diloco, range(2))
    before = diloco.shared_weights
    with pytest.raises(RuntimeError, match=r"rank 0 is at step 4 of an interval of 2, rank 1 at"):
        train(model, diloco, range(2, 8))
    for name, value in diloco.shared_weights.items():
        assert_bits(value, before[name], name)


@pytest.mark.ranks(2)
def test_an_interval_that_is_no_number_of_steps_raises() -> None:
    model, diloco = made(sync_every=lambda given: 2 if given.steps == 0 else 0)
    with pytest.raises(ValueError, match="the interval that sync_every returns must be at least 1"):
        train(model, diloco, range(2))
    assert diloco.stats.outer_steps == 1
