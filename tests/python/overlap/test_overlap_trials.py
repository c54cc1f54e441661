"""Overlap that does not pay is given up: on all ranks in the same step, with the same results.

Times are given: a step with overlap takes two seconds, and one without takes one, or the other way.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from forward_overlap_training import RING, Pair, adamw, assert_equal_states, loss_of
from q7x2._core import overlap_trial
from q7x2._core.overlap_trial import OverlapDecision, OverlapTrial

BLOCK = 7  # steps of each way in a trial
FIRST = 7  # DDP's own steps, before any overlap
RECORDED = 9  # steps with overlap that the timeline needs

beyond = pytest.mark.beyond("gloo", "a reduce-scatter sums in another order than an all-reduce")


def timed(trial: OverlapTrial, seconds: Callable[[bool], float]) -> None:
    """From now on steps take ``seconds`` of whether they overlap."""
    add = trial.add
    trial.add = lambda _: add(seconds(trial.overlaps))  # type: ignore[method-assign]


@contextlib.contextmanager
def trials_every(steps: int, most: int) -> Iterator[list[str]]:
    """Yields what is logged."""
    logged: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_trial, "_EVERY", steps)
        patch.setattr(overlap_trial, "_MOST", most)
        patch.setattr(overlap_trial, "log_info", logged.append)
        yield logged


def group() -> Any:
    return dist.group.WORLD


@pytest.mark.ranks(2, 3)
def test_all_ranks_take_the_way_that_is_faster_on_the_slowest_one() -> None:
    rank = dist.get_rank()
    for seconds, overlaps in (
        (lambda way: 2.0 if way else 1.0, False),
        (lambda way: 1.0 if way else 2.0, True),
        (lambda way: 1.0, False),  # the plain way is simpler
        (lambda way: (9.0 if way else 2.0) if rank == 1 else (1.0 if way else 2.0), False),
        (lambda way: (1.0 if way else 3.0) if rank == 1 else (2.0 if way else 1.0), True),
    ):
        trial = OverlapTrial(group(), "a test")
        timed(trial, seconds)
        ways = []
        for _ in range(3 * BLOCK):
            ways.append(trial.overlaps)
            trial.add(0.0)
        assert ways == [True] * BLOCK + [False] * BLOCK + [overlaps] * BLOCK
        (decision,) = trial.decisions
        assert (decision.step, decision.overlaps) == (2 * BLOCK, overlaps)
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, decision)
        assert everybody == [decision] * len(everybody)


@pytest.mark.ranks(2)
def test_trials_are_rare_and_become_rarer() -> None:
    with trials_every(10, 30):
        trial = OverlapTrial(group(), "a test")
        slow = [True]  # the way that is
        timed(trial, lambda way: 2.0 if way is slow[0] else 1.0)
        for _ in range(200):
            trial.add(0.0)
        steps = [decision.step for decision in trial.decisions]
        pauses = [end - begin - 2 * BLOCK for begin, end in itertools.pairwise(steps)]
        assert pauses[:4] == [10, 20, 30, 30]
        slow[0] = False  # what was slow is fast now
        while not trial.decisions[-1].overlaps:
            trial.add(0.0)
        for _ in range(10 + 2 * BLOCK):
            trial.add(0.0)
        assert trial.decisions[-1].step - trial.decisions[-2].step == 10 + 2 * BLOCK


@pytest.mark.ranks(2)
def test_a_gain_within_the_noise_does_not_bring_overlap_back() -> None:
    with trials_every(0, 0):
        trial = OverlapTrial(group(), "a test")
        with_overlap = [2.0, 0.99, 0.9]
        timed(trial, lambda way: with_overlap[len(trial.decisions)] if way else 1.0)
        while len(trial.decisions) < len(with_overlap):
            trial.add(0.0)
    assert [decision.overlaps for decision in trial.decisions] == [False, False, True]


def test_a_decision_as_text() -> None:
    decision = OverlapDecision(14, 0.3, 0.2, overlaps=False)
    assert str(decision) == (
        "step 14: without overlap, because a step takes 300 ms with it and 200 ms without"
    )


# ---- trainings -----------------------------------------------------------------------------------


@contextlib.contextmanager
def steps_take(seconds: Callable[[bool], float]) -> Iterator[None]:
    """Trials hear that steps take ``seconds`` of whether they overlap."""
    add = OverlapTrial.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverlapTrial, "add", lambda trial, _: add(trial, seconds(trial.overlaps)))
        yield


def check_states(pair: Pair) -> None:
    assert_equal_states(*(optimizer.state_dict() for optimizer in reversed(pair.optimizers)))


@beyond
@pytest.mark.ranks(2, env=RING, stays=True, deadline=240, timeout=120)
def test_slow_overlap_ends_and_weights_keep_the_bits_of_ddp(tmp_path: pathlib.Path) -> None:
    pair = Pair(adamw, overlap=None)
    slow = [True]
    end = FIRST + RECORDED + 2 * BLOCK
    sharded = []
    with trials_every(4, 4) as logged, steps_take(lambda way: 2.0 if way is slow[0] else 1.0):
        for step in range(end + 3):
            sharded.append(pair.attached.stats.steps)
            pair.train(range(step, step + 1))
            pair.assert_equal(step)
            check_states(pair)
        assert sharded[-1] == sharded[-BLOCK]  # it is over
        (decision,) = pair.attached.decisions
        assert not decision.overlaps
        assert logged == [f"overlap with forward, {decision}"]
        counts: list[Any] = [None] * 2
        dist.all_gather_object(counts, (sharded, decision))
        assert counts[0] == counts[1]
        timeline = pair.attached.timeline
        assert timeline is not None
        assert timeline.decisions == (decision,)
        assert str(decision) in str(timeline)
        path = tmp_path / f"timeline{dist.get_rank()}.json"
        timeline.save(path)
        assert q7x2.overlap.ForwardTimeline.load(path) == timeline

        slow[0] = False
        while len(pair.attached.decisions) < 2:
            pair.train(range(end, end + 1))
            pair.assert_equal("again")
        pair.train(range(end, end + 2))
    assert pair.attached.decisions[-1].overlaps
    assert pair.attached.stats.steps > sharded[-1] + BLOCK
    assert not pair.optimizers[1].state  # each rank has its part again
    pair.assert_equal("overlap again")
    check_states(pair)


@beyond
@pytest.mark.ranks(2, env=RING, stays=True, deadline=240, timeout=120)
def test_without_overlap_everything_is_as_with_ddp() -> None:
    """Accumulated gradients, a saved and a loaded state, clipping, detach."""
    pair = Pair(adamw, overlap=q7x2.overlap.OverlapOptions(chunk_bytes=4 << 20))
    with steps_take(lambda way: 2.0 if way else 1.0):
        pair.train(range(FIRST + RECORDED + 2 * BLOCK + 1))
    assert not pair.attached.decisions[-1].overlaps
    # The last bit of a norm depends on where the gradients lie in memory: nothing is cut off here.
    norms = []
    for ddp, optimizer in pair.both():
        with ddp.no_sync():
            loss_of(ddp, 50).backward()
        loss_of(ddp, 51).backward()
        clip = torch.nn.utils.clip_grad_norm_
        if ddp is pair.ours:
            norms.append(pair.attached.clip_grad_norm_(1e6))
        else:
            norms.append(clip(list(ddp.parameters()), 1e6))
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    torch.testing.assert_close(*norms)
    pair.train(range(60, 62))
    pair.assert_equal()
    check_states(pair)
    pair.attached.finish()
    pair.train(range(62, 64))
    pair.assert_equal()


@pytest.mark.ranks(2)
def test_options_that_are_all_given_are_not_tried() -> None:
    pair = Pair(adamw)
    with steps_take(lambda way: 2.0 if way else 1.0):
        pair.train(range(FIRST + RECORDED + 2 * BLOCK + 1))
    assert pair.attached.decisions == ()
    assert pair.attached.stats.steps > 2 * BLOCK  # they overlap, though it is said to be slow


@beyond
@pytest.mark.ranks(2, env=RING, stays=True, deadline=240, timeout=120)
def test_without_overlap_gradients_are_clipped_as_by_torch() -> None:
    """The last bit of the norm, and so of each step, depends on where the gradients lie."""
    pair = Pair(adamw, overlap=q7x2.overlap.OverlapOptions(chunk_bytes=4 << 20))
    with steps_take(lambda way: 2.0 if way else 1.0):
        pair.train(range(FIRST + RECORDED + 2 * BLOCK + 1))
    assert not pair.attached.decisions[-1].overlaps
    norms = []
    for ddp, optimizer in pair.both():
        loss_of(ddp, 51).backward()
        if ddp is pair.ours:
            norms.append(pair.attached.clip_grad_norm_(0.1))
        else:
            norms.append(torch.nn.utils.clip_grad_norm_(list(ddp.parameters()), 0.1))
        clipped = [p.grad.norm() for p in ddp.parameters() if p.grad is not None]
        assert torch.stack(clipped).norm() < 0.101
        optimizer.step()
        optimizer.zero_grad()
    assert norms[0] > 0.1
    torch.testing.assert_close(*norms)
    pair.attached.flush()
    ours = dict(pair.ours.named_parameters())
    for name, p in pair.plain.named_parameters():
        torch.testing.assert_close(ours[name], p, rtol=1e-5, atol=1e-7, msg=name)
