"""Gradients that are applied when they come: order, staleness, modes, replicas, state, errors."""

from __future__ import annotations

import copy
import math
import os
import random
import signal
from datetime import timedelta
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import batch, everybodys_objects, net
from members import Board
from pairs import each_value, nightly
from q7x2.late import updates as late_updates
from torch import nn
from values import Clock, assert_bits, assert_close, assert_same_on_all_ranks, flat, meet

ONLY_Q7X2 = pytest.mark.beyond("gloo", "has no late updates")
PLAIN: dict[str, Any] = {"timeout": 50.0}


def made(lr: float = 0.05, **options: Any) -> tuple[nn.Module, q7x2.late.StaleSGD]:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, q7x2.late.StaleSGD(model, sgd, **PLAIN | options)


def weight(lr: float = 1.0, **options: Any) -> tuple[nn.Linear, q7x2.late.StaleSGD]:
    """A model of one weight, which is 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return model, q7x2.late.StaleSGD(model, sgd, **PLAIN | options)


def give(model: nn.Linear, late: q7x2.late.StaleSGD, gradient: float, samples: float = 1.0) -> None:
    model.weight.grad = torch.full((1, 1), gradient)
    late.step(samples)


def train(model: nn.Module, late: q7x2.late.StaleSGD, versions: int, first: int = 0) -> None:
    step = first
    while late.steps < versions:
        x, y = batch(dist.get_rank(), step)
        nn.functional.mse_loss(model(x), y).backward()
        late.step()
        step += 1


# ---- when gradients are applied ------------------------------------------------------------------


@ONLY_Q7X2
@pytest.mark.parametrize("discount", [True, False])
@pytest.mark.ranks(3)
def test_eager_applies_each_gradient_when_it_comes(discount: bool) -> None:
    """Rank 1 takes two steps while the others compute; rank 2's gradient is two versions old."""
    model, late = weight(discount=discount)
    rank = dist.get_rank()
    if rank == 1:
        give(model, late, 1.0)
        assert (late.steps, model.weight.item()) == (1, -1.0)
        give(model, late, 2.0)
        assert (late.steps, model.weight.item()) == (2, -3.0)
    meet()
    if rank == 2:
        give(model, late, 6.0)
        assert (late.steps, late.stats.staleness) == (3, 2)
    late.finish()
    stale = 6 / math.sqrt(3) if discount else 6
    assert_close(model.weight.detach(), torch.tensor([[-3.0 - stale]]))
    assert late.steps == 3
    assert_same_on_all_ranks([model.weight.detach()])
    assert late.stats.sent == (0, 2, 1)[rank]
    # Rank 1 saw no gradients of others, and rank 2 saw two: a lag of one per other rank.
    assert (late.lag.mean, late.lag.spread) == (0.5, 1.0)


@ONLY_Q7X2
@pytest.mark.ranks(4)
def test_buffered_applies_the_mean_of_the_first_ones() -> None:
    model, late = weight(mode="buffered", buffer=2)
    rank = dist.get_rank()
    if rank in (1, 3):
        give(model, late, float(rank), samples=rank)
        assert late.steps == 1
        assert_close(model.weight.detach(), torch.tensor([[-(1 * 1 + 3 * 3) / 4]]))
    meet()
    if rank in (0, 2):
        give(model, late, 4.0)
        assert (late.steps, late.stats.staleness) == (2, 1)
    late.finish()
    assert_close(model.weight.detach(), torch.tensor([[-2.5 - 4 / math.sqrt(2)]]))
    assert_same_on_all_ranks([model.weight.detach()])


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_epochs_are_steps_with_the_batches_of_all_ranks(world_size: int) -> None:
    model, late = made(mode="epochs", send_every=2)
    train(model, late, 3)
    assert (late.stats.steps, late.stats.sent, late.stats.largest_staleness) == (6, 3, 0)
    late.finish()
    assert_same_on_all_ranks([flat(model)])
    other = net()
    sgd = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    for version in range(3):
        sgd.zero_grad()
        for rank in range(world_size):
            for step in (2 * version, 2 * version + 1):
                x, y = batch(rank, step)
                (nn.functional.mse_loss(other(x), y) / (2 * world_size)).backward()
        sgd.step()
    assert_close(flat(model), flat(other), rtol=1e-4, atol=1e-6)


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_fast_rank_waits_before_another_one_would_be_too_stale() -> None:
    model, late = weight(staleness=2, discount=False)
    rank = dist.get_rank()
    if rank == 1:
        give(model, late, 1.0)
        give(model, late, 1.0)
        late.timeout = 0.2
        with pytest.raises(TimeoutError, match=r"step 2 timed out after 0\.2 s, .* ranks 0, 2"):
            give(model, late, 1.0)
        late.timeout = 50.0
    meet()
    if rank == 1:
        give(model, late, 100.0)  # waits on; this gradient is not used
    else:
        give(model, late, 2.0)
    late.finish()
    # Version 3 has the mean of ranks 0 and 2, whose staleness is 2, and version 4 rank 1's.
    assert late.steps == 4
    assert_close(model.weight.detach(), torch.tensor([[-1.0 - 1.0 - 2.0 - 1.0]]))
    assert late.stats.largest_staleness == (1 if rank == 1 else 2)


@ONLY_Q7X2
@pytest.mark.parametrize(("mode", "seed"), each_value(["eager", "buffered", "epochs"], [0, 1]))
@pytest.mark.ranks(4, deadline=120)
def test_random_delays_leave_equal_replicas(mode: str, seed: int) -> None:
    model, late = made(lr=0.01, mode=mode, staleness=5)
    print(f"seed {seed}")
    chance = random.Random(10 * seed + dist.get_rank())
    seen = 0
    while late.steps < 16:
        for _ in range(chance.choice((1, 1, 1, 6))):  # some steps take longer
            x, y = batch(dist.get_rank(), late.stats.steps)
            loss = nn.functional.mse_loss(model(x), y)
            late.optimizer.zero_grad()
            loss.backward()
        late.step()
        seen += 1
    late.finish()
    assert_same_on_all_ranks([flat(model)])
    assert late.stats.sent == seen
    assert late.stats.largest_staleness <= 5
    versions = everybodys_objects((late.steps, late.lag, late.history))
    assert versions == [versions[0]] * 4


# ---- modes that follow the lag -------------------------------------------------------------------


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_modes_follow_the_lag_and_all_ranks_switch_at_the_same_version() -> None:
    follow = q7x2.late.FollowLag(buffered=2.4, epochs=2.5, margin=0.1, hold=1)
    model, late = weight(lr=0.01, mode=follow)
    rank = dist.get_rank()
    if rank == 1:
        for _ in range(4):
            give(model, late, 1.0)
        assert late.mode == "eager"
    meet()
    if rank == 2:  # four gradients were applied meanwhile: its lag is 4 / 2
        give(model, late, 1.0)
        assert late.mode == "epochs"
    late.flush()
    assert late.lag == q7x2.late.LagFacts(5, "epochs", 0, 1.0, 2.0)
    # In epochs the times of backwards count: rank 2's lag falls by a quarter of what is above 1.
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(late_updates, "time", clock)
        for version, mode in ((6, "epochs"), (7, "eager")):
            clock.passed += 1e6  # a backward takes this long, so other differences do not count
            give(model, late, 1.0)
            assert (late.steps, late.mode) == (version, mode)
    late.finish()
    assert [event.steps for event in late.history] == [0, 5, 7]
    histories = everybodys_objects(late.history)
    assert histories == [late.history] * 3
    assert_same_on_all_ranks([model.weight.detach()])


@ONLY_Q7X2
@pytest.mark.ranks(2)
def test_a_mode_that_differs_between_ranks_is_an_error() -> None:
    def choose(facts: q7x2.late.LagFacts) -> str:
        return "eager" if facts.steps == 0 or dist.get_rank() == 0 else "buffered"

    model, late = weight(mode=choose)
    if dist.get_rank() == 0:
        give(model, late, 1.0)
        give(model, late, 1.0)
    meet()
    if dist.get_rank() == 1:
        with pytest.raises(RuntimeError, match="in the mode 'eager', and this rank in 'buffered'"):
            give(model, late, 1.0)
        assert late.steps == 1


# ---- state, failures, errors ---------------------------------------------------------------------


@ONLY_Q7X2
@pytest.mark.ranks(2)
def test_a_training_goes_on_from_a_state_with_the_same_bits() -> None:
    options = {"mode": "epochs", "send_every": 2}
    model, late = made(**options)
    train(model, late, 3)
    late.flush()
    state = late.state_dict()
    saved = copy.deepcopy((model.state_dict(), late.optimizer.state_dict()))
    again = net(seed=3)
    sgd = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    again.load_state_dict(saved[0])
    sgd.load_state_dict(saved[1])
    resumed = q7x2.late.StaleSGD(again, sgd, **PLAIN | options)
    resumed.load_state_dict(state)
    assert (resumed.steps, resumed.history) == (3, late.history)
    for each, trained in ((late, model), (resumed, again)):
        train(trained, each, 6, first=6)
        each.finish()
    assert_bits(flat(again), flat(model))
    with pytest.raises(ValueError, match="the state is of 3 ranks, expected 2"):
        made()[1].load_state_dict({**state, "world_size": 3})
    with pytest.raises(RuntimeError, match="before the first step"):
        late.load_state_dict(state)


@ONLY_Q7X2
@pytest.mark.ranks(2)
def test_what_has_been_added_up_is_applied_before_a_flush() -> None:
    model, late = weight(mode="epochs", send_every=3)
    rank = dist.get_rank()
    for _ in range(1 + rank):
        give(model, late, 1.0 + rank)
    with pytest.raises(RuntimeError, match=r"right after flush\(\) only"):
        late.state_dict()
    late.flush()
    assert late.steps == 1
    assert_close(model.weight.detach(), torch.tensor([[-(1 + 2 + 2) / 3]]))
    assert late.state_dict()["log"]["version"] == 1
    late.finish()
    assert late.steps == 1


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_gradient_that_is_not_finite_raises_on_all_ranks_and_changes_nothing() -> None:
    model, late = weight(mode="epochs")
    with pytest.raises(FloatingPointError, match="the gradient of version 1 has Inf or NaN"):
        give(model, late, math.nan if dist.get_rank() == 1 else 1.0)
    assert (late.steps, model.weight.item()) == (1, 0.0)
    give(model, late, 1.0)
    late.finish()
    assert (late.steps, model.weight.item()) == (2, -1.0)


def body_lose_a_rank(victim: int, shared: str) -> None:
    """A dead rank ends the group, and the others go on in a new one."""
    model, late = made()
    train(model, late, 4)
    late.flush()
    state = late.state_dict()
    Board(shared, 3).barrier("all have left flush")
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError):
        train(model, late, 10_000)
    dist.shrink_group([victim])
    with pytest.raises(ValueError, match="the state is of 3 ranks, expected 2"):
        q7x2.late.StaleSGD(model, late.optimizer, **PLAIN).load_state_dict(state)
    late = q7x2.late.StaleSGD(model, late.optimizer, **PLAIN)
    train(model, late, 6)
    late.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.parametrize("victim", [0, nightly(1, "the same of another rank")])
def test_a_rank_that_dies_ends_the_group(
    victim: int, new_pool: Any, backend: str, shared: str
) -> None:
    pool = new_pool(3)
    spec = harness.GroupSpec(backend, key="late", timeout=60)
    pool.start(body_lose_a_rank, spec, 120, victim=victim, shared=shared)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    expected = ["died" if rank == victim else "ok" for rank in range(3)]
    assert [o.kind for o in outcomes] == expected, text


@ONLY_Q7X2
@pytest.mark.ranks(1)
def test_one_rank_trains_alone() -> None:
    model, late = weight()
    give(model, late, 1.0)
    late.finish()
    assert (late.steps, model.weight.item(), late.lag.mean) == (1, -1.0, 0.0)


@ONLY_Q7X2
@pytest.mark.ranks(2)
def test_mistakes_raise_when_it_is_made() -> None:
    for error, options in (
        ("mode must be one of eager, buffered, epochs", {"mode": "lazy"}),
        ("buffer must be at most 2", {"buffer": 3}),
        ("buffer must be at least 1", {"buffer": 0}),
        ("send_every must be at least 1", {"send_every": 0}),
        ("staleness must not be negative", {"staleness": -1}),
        ("discount must be True or False", {"discount": 2}),
        ("timeout must be positive", {"timeout": 0.0}),
        ("timeout must be positive", {"timeout": timedelta(0)}),
        ("the same StaleSGD, but rank 0", {"send_every": 1 + dist.get_rank()}),
        ("the same StaleSGD, but rank 0", {"mode": ("eager", "epochs")[dist.get_rank()]}),
    ):
        with pytest.raises(ValueError, match=error):
            made(**options)
    with pytest.raises(TypeError, match="no argument 'state': use 'load_state_dict'"):
        made(state={})
    with pytest.raises(TypeError, match="optimizer must be of type Optimizer"):
        q7x2.late.StaleSGD(net(), None)  # type: ignore[arg-type]
    _, late = weight()
    with pytest.raises(ValueError, match="samples must be positive"):
        late.step(samples=0)
    old: Any = late
    with pytest.raises(AttributeError, match="no attribute 'sync': use 'flush'"):
        old.sync()
    late.finish()
