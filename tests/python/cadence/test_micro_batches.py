"""Shares of the global batch by speed: the best ones, exact means, agreed steps, state, errors."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import everybodys_objects
from q7x2.cadence.micro_batches import shares_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from values import assert_close


def longest(shares: tuple[int, ...], seconds: list[float]) -> float:
    return max(share * each for share, each in zip(shares, seconds, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_no_other_shares_end_earlier(seed: int) -> None:
    chance = random.Random(seed)
    ranks, least = chance.randint(1, 4), chance.randint(1, 2)
    total = least * ranks + chance.randint(0, 12)
    seconds = [chance.choice((0.5, 1.0, 3.0, chance.uniform(0.1, 20))) for _ in range(ranks)]
    case = f"seed {seed}: {total} of at least {least} for {seconds}"
    shares = shares_of(total, seconds, least)
    assert sum(shares) == total, case
    assert min(shares) >= least, case
    others = itertools.product(range(least, total + 1), repeat=ranks - 1)
    best = min(
        longest((*each, total - sum(each)), seconds)
        for each in others
        if total - sum(each) >= least
    )
    assert longest(tuple(shares), seconds) == pytest.approx(best), case


def test_equal_ranks_have_equal_shares_and_the_first_ones_the_rest() -> None:
    assert shares_of(8, [2.0] * 4) == [2, 2, 2, 2]
    assert shares_of(10, [0.1] * 4) == [3, 3, 2, 2]
    assert shares_of(64, [1.0, 1.0, 3.0]) == [28, 27, 9]
    assert shares_of(5, [1.0, 1000.0], least=2) == [3, 2]


def batch(step: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(total, 4, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


@pytest.mark.ranks(3)
def test_gradients_are_the_mean_over_all_samples_whatever_the_shares() -> None:
    """Rank 1 is three times slower; samples are micro-batches of one backward."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    ddp = DistributedDataParallel(model)
    batches = q7x2.cadence.MicroBatches(14, compare_every=2)
    assert batches.shares == (5, 5, 4)
    for step in range(4):
        ddp.zero_grad()
        x, y = batch(step, 14)
        mine = slice(batches.first, batches.first + batches.mine)
        loss = nn.functional.mse_loss(ddp(x[mine]), y[mine]) * batches.mine * batches.weight
        loss.backward()
        found = [p.grad.clone() for p in model.parameters()]
        whole = nn.functional.mse_loss(model(x), y)
        expected = torch.autograd.grad(whole, list(model.parameters()))
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, rtol=1e-5, atol=1e-6)
        batches.record((3.0 if dist.get_rank() == 1 else 1.0) * batches.mine)
        batches.step()
    assert batches.shares == (6, 2, 6)
    assert [event.step for event in batches.history] == [0, 2]
    assert everybodys_objects(batches.history) == [batches.history] * 3


@pytest.mark.ranks(2)
def test_micro_batches_that_are_accumulated_are_the_mean_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    ddp = DistributedDataParallel(model)
    batches = q7x2.cadence.MicroBatches(5)
    data = [batch(index, 3) for index in range(5)]
    for index in range(batches.mine):
        x, y = data[batches.first + index]
        ddp.require_backward_grad_sync = index == batches.mine - 1
        with batches.timed():
            loss = nn.functional.mse_loss(ddp(x), y)
        (loss * batches.weight).backward()
    whole = [torch.cat(each) for each in zip(*data, strict=True)]
    expected = torch.autograd.grad(
        nn.functional.mse_loss(model(whole[0]), whole[1]), list(model.parameters())
    )
    for p, other in zip(model.parameters(), expected, strict=True):
        assert_close(p.grad, other, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2)
def test_small_changes_and_missing_times_change_nothing() -> None:
    batches = q7x2.cadence.MicroBatches(20, compare_every=1, change=0.2)
    rank = dist.get_rank()
    for seconds, expected in (
        ((1.0, 1.3), (10, 10)),  # (11, 9) would be 10 % shorter
        ((1.0, None), (10, 10)),
        ((1.0, 3.0), (15, 5)),
        ((1.0, 2.5), (15, 5)),  # (14, 6) would not be shorter
        ((1.0, 1.0), (10, 10)),
    ):
        mine = seconds[rank]
        if mine is not None:
            batches.record(mine * batches.mine / 2)
            batches.record(mine * batches.mine / 2)
        batches.step()
        assert batches.shares == expected, seconds
    assert [event.step for event in batches.history] == [0, 3, 5]


@pytest.mark.ranks(2)
def test_state() -> None:
    batches = q7x2.cadence.MicroBatches(8, compare_every=2)
    for _ in range(3):
        batches.record(7.0 if dist.get_rank() else 1.0)
        batches.step()
    assert batches.shares == (7, 1)
    state = json.loads(json.dumps(batches.state_dict()))
    again = q7x2.cadence.MicroBatches(8, compare_every=2)
    again.load_state_dict(state)
    assert again.shares == (7, 1)
    assert again.history == batches.history
    again.record(7.0 if dist.get_rank() == 0 else 1.0)
    again.step()  # the fourth one: ranks compare times, and are equal now
    assert again.shares == (4, 4)
    other = q7x2.cadence.MicroBatches(9)
    with pytest.raises(ValueError, match="has 8 micro-batches of 2 ranks, expected 9 of 2"):
        other.load_state_dict(state)
    assert other.shares == (5, 4)


@pytest.mark.ranks(2)
def test_mistakes_raise_when_it_is_made() -> None:
    for error, options in (
        ("total must be at least 2", {"total": 1}),
        ("total must be at least 6", {"total": 5, "least": 3}),
        ("least must be at least 1", {"least": 0}),
        ("compare_every must be at least 1", {"compare_every": 0}),
        ("change must be at least 0 and less than 1", {"change": 1.0}),
        ("the same MicroBatches, but rank 0", {"total": 8 + dist.get_rank()}),
    ):
        with pytest.raises(ValueError, match=error):
            q7x2.cadence.MicroBatches(**{"total": 8} | options)
    with pytest.raises(ValueError, match="seconds must be positive"):
        q7x2.cadence.MicroBatches(8).record(0)
