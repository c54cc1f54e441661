"""Hooks when a collective fails: the step is undone, and another process group goes on."""

from __future__ import annotations

import copy
import pathlib
import signal
import time
from datetime import timedelta
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    assert_states_equal,
    attached,
    backward,
    exact,
    residuals,
    sgd,
    train,
)
from pairs import nightly
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close, assert_same_on_all_ranks, meet

REST = ("alternating", "batched", "dgc", "composed", "blocks")
KINDS = ("powersgd", "int4", *REST)
EVERY_KIND = [pytest.param(HOOKS[kind], id=kind) for kind in KINDS]


def trained(hook: Any, **options: Any) -> tuple[DDP, q7x2.hooks.Attached, dict[str, Any]]:
    """A model after three steps, its hook, and the hook's state. Its group waits two seconds."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    ddp, at_work = attached(hook, process_group=group, **options)
    train(ddp, sgd(ddp), range(3))
    return ddp, at_work, at_work.state_dict()


@pytest.mark.parametrize(
    "hook",
    [
        HOOKS["powersgd"],
        HOOKS["int4"],
        *(nightly(HOOKS[kind], "goes on after a failure in the quick level") for kind in REST),
    ],
    ids=("powersgd", "int4", *REST),
)
@pytest.mark.ranks(2)
def test_a_failed_step_is_undone(hook: Any) -> None:
    """Rank 1 stays away, so that rank 0 waits until its time is over."""
    ddp, at_work, before = trained(hook, attach=exact(), **SMALL_BUCKETS)
    if dist.get_rank() == 0:
        ddp.zero_grad()
        with pytest.raises(RuntimeError):
            backward(ddp, 3)
        assert at_work.steps == 3
        assert_states_equal(at_work.state_dict(), before)
        at_work.load_state_dict(before)
        assert_states_equal(at_work.state_dict(), before)
        at_work.detach()


@pytest.mark.parametrize("hook", EVERY_KIND)
@pytest.mark.ranks(2)
def test_another_group_goes_on_from_the_step_before_the_failure(hook: Any) -> None:
    ddp, at_work, before = trained(hook, attach=exact(), **SMALL_BUCKETS)
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError):
            backward(ddp, 3)
    dist.barrier()
    again = DDP(ddp.module, process_group=dist.new_group(), **SMALL_BUCKETS)
    at_work.rebind(again)
    assert_states_equal(at_work.state_dict(), before)
    train(again, sgd(again), range(3, 6))
    assert at_work.steps == 6
    assert_same_on_all_ranks([p for p in again.parameters() if p.numel()])


@pytest.mark.ranks(2)
def test_without_a_scaler_a_failure_costs_residuals_only() -> None:
    ddp, at_work, before = trained(HOOKS["powersgd"])
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError):
            backward(ddp, 3)
        after = at_work.state_dict()
        assert after["step"] == 3
        for name, basis in after["shared"]["basis"].items():
            assert_bits(basis, before["shared"]["basis"][name], name)
        assert not any(r.any() for r in residuals(at_work).values())


@pytest.mark.ranks(3, fresh=True)
def test_fewer_ranks_go_on_with_what_they_kept() -> None:
    ddp, at_work = attached(HOOKS["int8"])
    train(ddp, sgd(ddp), range(2))
    kept = residuals(at_work)
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    smaller = DDP(ddp.module, process_group=pair)
    at_work.rebind(smaller)
    for name, residual in residuals(at_work).items():
        assert_bits(residual, kept[name], name)
    alone = DDP(copy.deepcopy(ddp.module), process_group=pair)
    gradients = []
    for model in (smaller, alone):
        model.zero_grad()
        backward(model, 2)
        gradients.append([p.grad.clone() for p in model.parameters() if p.numel()])
    left = residuals(at_work)
    names = [name for name, p in ddp.module.named_parameters() if p.numel()]
    for name, applied, mean in zip(names, *gradients, strict=True):
        if name not in kept:  # it travels whole
            continue
        total = torch.stack([kept[name], -left[name]]).sum(0)
        dist.all_reduce(total, group=pair)
        assert_close(applied, mean + total, name, rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(2)
def test_ranks_that_are_at_different_steps_cannot_go_on() -> None:
    ddp, at_work = attached(HOOKS["int8"])
    backward(ddp, 0)
    if dist.get_rank() == 1:
        at_work.load_state_dict(at_work.state_dict() | {"step": 7})
    with pytest.raises(ValueError, match=r"rank 0 has step=1 where rank 1 of the group has step=7"):
        at_work.rebind(DDP(ddp.module))
    assert isinstance(at_work, q7x2.hooks.Attached)


def _lose_a_peer(ready: str) -> str:
    ddp, _ = attached(q7x2.PowerSGD(rank=2, start_iter=0), **SMALL_BUCKETS)
    backward(ddp, 0)
    if dist.get_rank() == 1:
        pathlib.Path(ready).touch()
        time.sleep(60)  # it is killed
    try:
        backward(ddp, 1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing happened"


@pytest.mark.beyond("gloo", "waits for its time-out")
def test_a_peer_that_dies_ends_the_backward(new_pool: Any, backend: str, shared: str) -> None:
    pool = new_pool(2)
    ready = pathlib.Path(shared) / "rank 1 is about to be killed"
    pool.start(_lose_a_peer, harness.GroupSpec(backend=backend), ready=str(ready))
    harness.wait_until(ready.exists)
    pool.signal(1, signal.SIGKILL)
    outcomes = pool.collect(stop_on_failure=False)
    assert outcomes[1].kind == "died"
    assert "rank 1" in outcomes[0].value, outcomes[0]


@pytest.mark.parametrize("length", [-16, 2**40])
@pytest.mark.ranks(2)
def test_a_length_from_another_rank_is_checked(length: int) -> None:
    """Over Gloo hooks tell each other how long their messages are. Rank 1 tells what it likes."""
    group = dist.new_group(backend="gloo")
    known = set(dist.distributed_c10d._world.pg_map)
    ddp = DDP(nn.Linear(8, 8, bias=False), process_group=group)
    q7x2.attach(ddp, q7x2.TopK(0.1, start_iter=0))
    lanes = [each for each in dist.distributed_c10d._world.pg_map if each not in known]
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"rank 1 announced a message of -?\d+ bytes"):
            ddp(torch.ones(1, 8)).sum().backward()
    else:
        dist.all_reduce(torch.ones(1), group=lanes[0])  # how many ranks use the parameter
        told = torch.tensor([length, 0])
        dist.all_to_all_single(torch.empty_like(told), told, group=lanes[0])
    meet()
