"""State of trainings whose gathers overlap the next forward; what attach refuses; the parts."""

from __future__ import annotations

import copy
import itertools
import os
import signal
from dataclasses import replace
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from forward_overlap_training import (
    FIXED,
    Lamb,
    Lion,
    MakeOptimizer,
    Pair,
    adamw,
    assert_equal_states,
    loss_of,
    momentum,
)
from hook_training import SMALL_BUCKETS, net
from pairs import each_value
from q7x2.overlap.layout import Member, chunks_of, segments_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, flat, meet

pytestmark = pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")


# ---- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [momentum, adamw])
@pytest.mark.ranks(2)
def test_states_are_those_of_ddp_at_any_time(make: MakeOptimizer) -> None:
    pair = Pair(make)
    for step in range(4):
        pair.train(range(step, step + 1))
        for mine, its in zip(
            pair.ours.state_dict().values(), pair.plain.state_dict().values(), strict=True
        ):
            assert_bits(mine, its, step)
        assert_equal_states(pair.optimizers[1].state_dict(), pair.optimizers[0].state_dict())
        assert step == 0 or not pair.optimizers[1].state  # the whole is not kept
    pair.train(range(4, 5))
    pair.assert_equal()


@pytest.mark.parametrize(("make", "before"), each_value([momentum, adamw], [0, 1, 3]))
@pytest.mark.ranks(2)
def test_training_resumes_with_the_same_bits(make: MakeOptimizer, before: int) -> None:
    """The states are loaded before the first step, after DDP's step, and after steps on shards."""
    pair = Pair(make)
    pair.train(range(3))
    saved = copy.deepcopy((pair.ours.state_dict(), pair.optimizers[1].state_dict()))
    pair.train(range(3, 6))
    again = Pair(make)
    again.train(range(10, 10 + before))
    for ddp, optimizer in again.both():
        ddp.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # it keeps the tensors it is given
    again.train(range(3, 6))
    again.assert_equal()
    pair.attached.flush()
    assert_bits(flat(again.ours), flat(pair.ours))


@pytest.mark.ranks(2)
def test_weights_that_the_user_changes_are_trained_on() -> None:
    pair = Pair()
    pair.train(range(3))
    pair.attached.flush()
    for ddp, _ in pair.both():
        with torch.no_grad():
            for p in ddp.parameters():
                p.mul_(0.5)
    pair.train(range(3, 5))
    pair.assert_equal()


@pytest.mark.ranks(2)
def test_after_the_end_ddp_trains_as_without_overlap() -> None:
    pair = Pair(adamw)
    with pair.attached:
        pair.train(range(3))
        loss_of(pair.ours, 3).backward()
    pair.attached.finish()  # again, which does nothing
    assert all(p.grad is None for p in pair.ours.parameters())
    # Each rank has the whole state by itself: nothing is collective any more.
    states = [each.state_dict() for each in pair.optimizers]
    assert_equal_states(states[1], states[0])
    assert_bits(flat(pair.ours), flat(pair.plain))
    pair.train(range(3, 6))
    assert pair.attached.stats.steps == 2
    pair.assert_equal()


@pytest.mark.ranks(2)
def test_an_exception_ends_no_training() -> None:
    pair = Pair(adamw)
    with pytest.raises(ValueError, match="max_norm"), pair.attached:
        pair.attached.clip_grad_norm_(-1.0)
    pair.train(range(5))
    assert pair.attached.stats.steps == 4
    pair.assert_equal()
    with pytest.raises(AttributeError, match="no attribute 'detach': use 'finish'"):
        pair.attached.detach()


@pytest.mark.ranks(2)
def test_parameters_of_one_group_must_share_their_number_of_steps() -> None:
    pair = Pair(adamw, bucket_cap_mb=25)
    pair.train(range(2))
    state = pair.optimizers[1].state_dict()
    state["state"][0]["step"] += 1
    with pytest.raises(ValueError, match="updated together and need equal values"):
        pair.optimizers[1].load_state_dict(state)


# ---- a rank that dies ----------------------------------------------------------------------------


def body_a_rank_dies(early: float) -> None:
    pair = Pair(overlap=replace(FIXED, early=early))
    pair.train(range(3))
    meet()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def go_on() -> None:
        for step in range(3, 6):
            loss_of(pair.ours, step).backward()
            pair.optimizers[1].step()
            pair.optimizers[1].zero_grad()

    with pytest.raises(RuntimeError, match="rank 1"):
        go_on()


@pytest.mark.parametrize("early", [0.0, 0.6])
def test_a_rank_that_dies_is_an_error_of_the_next_steps(new_pool, backend, early: float) -> None:
    pool = new_pool(2)
    pool.start(body_a_rank_dies, harness.GroupSpec(backend, timeout=60), 120, early=early)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["ok", "died"], text


# ---- refusals ------------------------------------------------------------------------------------


def attach(model: nn.Module, optimizer: Any, options: Any = None, **ddp: Any) -> None:
    q7x2.overlap.attach(DDP(model, **SMALL_BUCKETS, **ddp), optimizer, options)


@pytest.mark.ranks(2)
def test_optimizers_that_are_not_elementwise_are_refused() -> None:
    for make, why in (
        (lambda p: Lamb(p, lr=0.1), "Lamb does not: steps on parts"),
        (lambda p: Lamb(p, lr=1e-9), "Lamb does not: steps on parts"),
        (torch.optim.Adafactor, "Adafactor does not"),
        (torch.optim.LBFGS, "it needs a closure"),
    ):
        model = net()
        with pytest.raises(q7x2.overlap.NotElementwiseError, match=why):
            attach(model, make(model.parameters()))
    # In torch 2.11 Adagrad makes its state at once, and steps only on parameters that it knows.
    adagrad = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))])
    for make in (
        *((torch.optim.Adagrad,) if not adagrad.state else ()),
        *(torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adamax),
        lambda p: torch.optim.SGD(p, lr=1e-9),
        lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=True),
        lambda p: Lion(p, lr=1e-4),
    ):
        model = net()
        attach(model, make(model.parameters()))


@pytest.mark.ranks(2)
def test_what_does_not_fit_is_refused() -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    model = net()
    with pytest.raises(ValueError, match="without find_unused_parameters"):
        attach(model, sgd(model), find_unused_parameters=True)
    with pytest.raises(TypeError, match="options must be of type OverlapOptions, got 'forward'"):
        attach(model, sgd(model), "forward")
    with pytest.raises(TypeError, match="optimizer must be of type Optimizer"):
        attach(model, None)
    old: Any = {"overlap": "forward"}
    with pytest.raises(TypeError, match=r"no argument 'overlap': use 'q7x2.overlap.attach\("):
        q7x2.attach(DDP(model), q7x2.Allreduce(), **old)
    with pytest.raises(ValueError, match="must have all parameters that DDP reduces"):
        attach(model, sgd(model.last))
    more = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="1 parameters that DDP does not reduce"):
        attach(model, torch.optim.SGD([*model.parameters(), more], lr=0.1))
    sparse = nn.Embedding(4, 4, sparse=True)
    with pytest.raises(ValueError, match="has sparse gradients"):
        attach(sparse, sgd(sparse))
    with pytest.raises(ValueError, match="the same overlap, but rank 0"):
        attach(model, sgd(model), q7x2.overlap.OverlapOptions(window=1 + dist.get_rank()))
    with pytest.raises(TypeError, match="needs a DistributedDataParallel"):
        q7x2.overlap.attach(model, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_bytes must be at least 1024"):
        q7x2.overlap.OverlapOptions(chunk_bytes=1)
    with pytest.raises(ValueError, match="early must be from 0 to 1"):
        q7x2.overlap.OverlapOptions(early=2)


# ---- the layout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("slice_length", [None, 5, 40])
def test_each_element_of_a_bucket_has_one_owner(ranks: int, slice_length: int | None) -> None:
    sizes = [1, 30, 0, 7, 62]
    begins = [0, *itertools.accumulate(sizes)]
    members = [Member(b, n, i % 2) for i, (b, n) in enumerate(zip(begins, sizes, strict=False))]
    seen = torch.zeros(100)
    chunks = chunks_of(100, ranks, 17, slice_length)
    assert len(chunks) == {None: 6, 5: 7, 40: 3}[slice_length]
    for runs in chunks:
        for rank in range(ranks):
            segments = segments_of(runs[rank], members)
            assert [s.group for s in segments] == sorted(s.group for s in segments)
            at = 0
            for segment in segments:
                assert segment.in_block == at
                at += segment.length
                assert segment.in_bucket == members[segment.member].begin + segment.at
                assert segment.at + segment.length <= members[segment.member].numel
                seen[segment.in_bucket : segment.in_bucket + segment.length] += 1
    assert_bits(seen, torch.ones(100))


def test_ranks_own_the_parts_of_every_slice() -> None:
    """Parts end at elements that are rounded down, as in an all-reduce; the last slice is short."""
    assert chunks_of(17, 3, 8, 7) == [
        [[(0, 2)], [(2, 4)], [(4, 7)]],
        [[(7, 9)], [(9, 11)], [(11, 14)]],
        [[(14, 15)], [(15, 16)], [(16, 17)]],
    ]
    assert chunks_of(17, 2, 14, 7) == [
        [[(0, 3), (7, 10)], [(3, 7), (10, 14)]],
        [[(14, 15)], [(15, 17)]],
    ]
    assert chunks_of(0, 3, 8, 7) == []
