"""Steps that wait for no rank in particular: stopped ranks, late ranks, codes, equal replicas."""

from __future__ import annotations

import copy
import math
import os
import signal
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from quorum_training import PLAIN, backward, made, reference, train
from torch import nn
from values import Signals, assert_bits, assert_close, assert_same_on_all_ranks, flat, pids

ONLY_Q7X2 = pytest.mark.beyond("gloo", "has no quorum")


# ---- nobody is late ------------------------------------------------------------------------------


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_steps_of_all_ranks_are_those_of_one_process_with_all_batches(world_size: int) -> None:
    model, quorum = made(need=3)
    with quorum:
        train(model, quorum, 6)
    quorum.finish()  # again, which does nothing
    assert quorum.stats.counted == 6
    with pytest.raises(RuntimeError, match="before the first step"):
        quorum.load_state_dict(quorum.state_dict())
    assert_same_on_all_ranks([flat(model)])
    expected = reference(lambda _: list(range(world_size)), 6)
    torch.testing.assert_close(flat(model), flat(expected), rtol=1e-4, atol=1e-5)


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_training_goes_on_from_a_state_with_the_same_bits() -> None:
    model, quorum = made(need=3)
    train(model, quorum, 3)
    saved = copy.deepcopy((model.state_dict(), quorum.optimizer.state_dict()))
    again, resumed = made(need=3)
    again.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    with pytest.raises(ValueError, match=r"rank 0 has steps=3 where rank 1 of the group has .*=4"):
        resumed.load_state_dict({"steps": 3 + (dist.get_rank() > 0)})
    resumed.load_state_dict(quorum.state_dict())
    assert resumed.steps == 3
    for each, trained in ((quorum, model), (resumed, again)):
        train(trained, each, 6)
        each.finish()
    assert_bits(flat(again), flat(model))
    with pytest.raises(TypeError, match="no argument 'steps': use 'load_state_dict'"):
        made(steps=3)


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_gradients_are_weighted_by_samples() -> None:
    model = nn.Linear(2, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    quorum = q7x2.late.QuorumSGD(model, sgd, need=3, timeout=40.0)
    before = model.weight.detach().clone()
    rank = dist.get_rank()
    model.weight.grad = torch.full((1, 2), float(rank))
    quorum.step(samples=rank + 1)
    assert_close(model.weight.detach(), before - (0 * 1 + 1 * 2 + 2 * 3) / 6)
    quorum.finish()


@ONLY_Q7X2
@pytest.mark.ranks(3)
def test_a_gradient_that_is_not_finite_raises_on_all_ranks_and_changes_nothing() -> None:
    model, quorum = made(need=3)
    before = flat(model)
    backward(model, quorum)
    if dist.get_rank() == 1:
        next(model.parameters()).grad[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="the gradient of step 0 has Inf or NaN"):
        quorum.step()
    assert_bits(flat(model), before)
    train(model, quorum, 2)
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
@pytest.mark.parametrize("late", ["drop", "keep"])
@pytest.mark.ranks(3)
def test_what_becomes_of_a_late_gradient(late: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    quorum = q7x2.late.QuorumSGD(
        model, sgd, need=2, late=late, grace=0.0, takeover=20.0, timeout=40.0
    )
    start = model.weight.detach().clone()

    def step(gradient: float) -> None:
        model.weight.grad = torch.full((1, 1), gradient)
        quorum.step()

    if dist.get_rank() == 2:
        dist.barrier()
        step(6.0)  # the others have closed step 0; it waits for the end of step 1, too
    else:
        step(1.0)
        dist.barrier()
        step(1.0)
    assert quorum.steps == 2
    assert_close(model.weight.detach(), start - 2)
    quorum.need = 3  # now all are waited for
    step(3.0)
    quorum.finish()
    assert_close(model.weight.detach(), start - 2 - (3 if late == "drop" else 3 + 6 / 3))
    assert quorum.stats.staleness == 0
    assert quorum.stats.missed == (2 if dist.get_rank() == 2 else 0)


# ---- ranks that are stopped ----------------------------------------------------------------------


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@ONLY_Q7X2
@pytest.mark.parametrize("stopped", [0, 3])
@pytest.mark.ranks(4, deadline=120)
def test_no_step_waits_for_a_rank_that_is_stopped(stopped: int) -> None:
    """The others take five steps, and only then does it go on; it ends with the same weights."""
    model, quorum = made()
    processes, rank = pids(), dist.get_rank()
    train(model, quorum, 3)
    if rank == stopped:
        stop()
    train(model, quorum, 8)
    if rank != stopped:
        os.kill(processes[stopped], signal.SIGCONT)
    train(model, quorum, 12)
    quorum.finish()
    assert quorum.steps == 12
    assert_same_on_all_ranks([flat(model)])
    stats = quorum.stats
    assert stats.counted + stats.missed + stats.skipped == 12


@ONLY_Q7X2
@pytest.mark.ranks(4, deadline=120)
def test_a_late_rank_contributes_if_the_others_need_it() -> None:
    """Rank 2 is late in step 0, and rank 1 is stopped in step 1, which needs three ranks."""
    model, quorum = made(grace=0.0)
    processes, rank = pids(), dist.get_rank()
    if rank == 2:
        dist.barrier()
    else:
        train(model, quorum, 1)
        dist.barrier()
    quorum.timing.grace = 0.2
    if rank == 1:
        stop()
    train(model, quorum, 5)
    if rank == 0:
        os.kill(processes[1], signal.SIGCONT)
    train(model, quorum, 8)
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])
    if rank == 2:
        assert quorum.stats.missed >= 1


@ONLY_Q7X2
@pytest.mark.ranks(3, deadline=120)
def test_a_rank_far_behind_takes_the_state_of_another_and_counts_again() -> None:
    model, quorum = made(grace=0.0)
    processes, rank = pids(), dist.get_rank()
    signals, end = Signals(), "the number of steps"
    if rank == 2:
        train(model, quorum, 2)
        stop()
    train(model, quorum, 10)
    if rank == 0:
        os.kill(processes[2], signal.SIGCONT)
    quorum.timing.grace = 5.0
    counted = quorum.stats.counted
    while not signals.is_given(end) or quorum.steps < int(signals.wait(end)):
        train(model, quorum, quorum.steps + 1)
        if rank == 2 and quorum.stats.counted > counted and not signals.is_given(end):
            signals.give(end, str(quorum.steps + 5))  # the others cannot be so far ahead of it
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])
    if rank == 2:
        assert quorum.stats.skipped + quorum.stats.missed >= 8


def body_lose_a_rank(victim: int) -> None:
    """A dead rank ends the group, and the others begin anew where they are."""
    model, quorum = made(need=3)
    train(model, quorum, 3)
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError):
        train(model, quorum, 1000)
    dist.shrink_group([victim])
    steps = quorum.state_dict()
    assert steps == {"steps": 3}
    quorum = q7x2.late.QuorumSGD(model, quorum.optimizer, **PLAIN)
    quorum.load_state_dict(steps)
    train(model, quorum, 6)
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])


@ONLY_Q7X2
def test_a_rank_that_dies_ends_the_group_and_the_others_make_a_new_quorum(
    new_pool: Any, backend: str
) -> None:
    pool = new_pool(4)
    pool.start(
        body_lose_a_rank, harness.GroupSpec(backend, key="quorum", timeout=60), 120, victim=0
    )
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [o.kind for o in outcomes] == ["died", "ok", "ok", "ok"], text


# ---- codes ---------------------------------------------------------------------------------------


@ONLY_Q7X2
@pytest.mark.ranks(4, deadline=120)
def test_coded_steps_are_exact_while_a_rank_is_stopped(world_size: int) -> None:
    model, quorum = made(copies=2)
    processes, rank = pids(), dist.get_rank()
    train(model, quorum, 2)
    if rank == 1:
        stop()
    train(model, quorum, 6)
    if rank == 0:
        os.kill(processes[1], signal.SIGCONT)
    train(model, quorum, 8)
    quorum.finish()
    assert_same_on_all_ranks([flat(model)])
    expected = reference(lambda _: list(range(world_size)), 8)
    torch.testing.assert_close(flat(model), flat(expected), rtol=1e-4, atol=1e-5)
