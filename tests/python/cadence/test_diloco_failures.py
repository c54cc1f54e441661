"""DiLoCo when messages fail: the outer step is undone, other ranks go on, new ones join."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from diloco_training import SPARSE, assert_replicas_equal, flat, flattened, made, train, weights
from harness import current_rank
from members import Board
from pairs import nightly
from values import assert_bits

OPTIONS: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 3},
    "sparse": {"sync_every": 3, "codec": SPARSE, "residual_decay": 0.9},
    "streaming": {"sync_every": 4, "fragments": 2, "overlap": 1, "codec": "int4"},
}
KINDS = [nightly("diloco", "sparse is the same with residuals"), "sparse", "streaming"]


def remembered(diloco: q7x2.cadence.DiLoCo) -> dict[Any, torch.Tensor]:
    """By kind and name; the keys of a state also have the rank, which a smaller group changes."""
    state = diloco.state_dict()
    (local,) = state["local"].values()
    return flattened(state["shared"] | local)


def assert_remembers(diloco: q7x2.cadence.DiLoCo, expected: dict[Any, torch.Tensor]) -> None:
    for name, tensor in remembered(diloco).items():
        if not {"arrived", "arrived_residual", "reports"}.intersection(name):
            assert_bits(tensor, expected[name], name)


def train_until_failure(model: torch.nn.Module, diloco: q7x2.cadence.DiLoCo, first: int) -> int:
    """Steps with a partner missing; returns the step at which one raised."""
    for step in range(first, first + 20):
        try:
            train(model, diloco, range(step, step + 1), rank=current_rank())
        except RuntimeError:
            return step
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(2)
def test_a_failed_outer_step_is_undone_and_another_group_goes_on(kind: str) -> None:
    """Rank 1 stays away, so that rank 0 waits until its time is over."""
    if "codec" in OPTIONS[kind] and dist.get_backend() == "gloo":
        pytest.skip("gloo has no codecs")
    group = dist.new_group(timeout=timedelta(seconds=2))
    model, diloco = made(**OPTIONS[kind], group=group)
    train(model, diloco, range(5))
    before = remembered(diloco)
    if dist.get_rank() == 0:
        train_until_failure(model, diloco, 5)
        assert_remembers(diloco, before)
        assert diloco.stats.rolled_back >= 1
    dist.barrier()
    diloco.rebind(dist.new_group())
    assert_remembers(diloco, before)
    outer_steps = diloco.stats.outer_steps
    train(model, diloco, range(20, 30))
    assert diloco.stats.outer_steps > outer_steps
    assert_replicas_equal(diloco)


def body_lose_a_rank(kind: str, victim: int) -> None:
    """Rank ``victim`` is killed between two outer steps; the others shrink the group."""
    model, diloco = made(**OPTIONS[kind])
    train(model, diloco, range(7))
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    shared = diloco.shared_weights
    train_until_failure(model, diloco, 7)
    for name, value in diloco.shared_weights.items():
        assert_bits(value, shared[name], name)
    before = remembered(diloco)
    dist.shrink_group([victim])
    diloco.rebind()
    assert_replicas_equal(diloco)
    assert_remembers(diloco, before)
    outer_steps = diloco.stats.outer_steps
    train(model, diloco, range(30, 40))
    assert diloco.stats.outer_steps >= outer_steps + 2
    assert_replicas_equal(diloco)


@pytest.mark.beyond("gloo", "cannot shrink")
@pytest.mark.parametrize(("kind", "victim"), [("sparse", 1), ("streaming", 0)])
def test_a_rank_is_killed_and_the_others_go_on(
    new_pool: Any, backend: str, kind: str, victim: int
) -> None:
    pool = new_pool(3)
    spec = harness.GroupSpec(backend, key="diloco", timeout=60)
    pool.start(body_lose_a_rank, spec, 120, kind=kind, victim=victim)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [o.kind for o in outcomes] == ["died" if r == victim else "ok" for r in range(3)], text


@pytest.mark.beyond("gloo", "cannot reconfigure")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(3, init="none", fresh=True)
def test_a_rank_that_joins_takes_the_shared_weights(
    kind: str, world_size: int, shared: str
) -> None:
    """Its first outer gradient does not count: it has trained for a part of the interval only."""
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    if me < 2:
        group = q7x2.reconfigure(1, handles[:2], timeout=60)
        model, diloco = made(**OPTIONS[kind], group=group)
        train(model, diloco, range(5), rank=me)
        before = diloco.shared_weights
        group = q7x2.reconfigure(2, handles, timeout=60, group=group)
        diloco.rebind(group)
        for name, value in diloco.shared_weights.items():
            assert_bits(value, before[name], name)
    else:
        group = q7x2.reconfigure(2, handles, timeout=60)
        model, diloco = made(**OPTIONS[kind], group=group)
        for name, value in weights(model).items():
            assert_bits(value, diloco.shared_weights[name], name)
    assert diloco.steps == 5
    mine = flat(diloco.shared_weights.values())
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine, group=group)
    assert all(torch.equal(row, mine) for row in rows)
    assert diloco.contributes == (me < 2)
    train(model, diloco, range(5, 15), rank=me)
    dist.all_gather(rows, mine := flat(diloco.shared_weights.values()), group=group)
    assert all(torch.equal(row, mine) for row in rows)
    assert diloco.contributes
    group.shutdown()


@pytest.mark.ranks(2)
def test_a_rank_that_missed_an_outer_step_takes_its_weights() -> None:
    """As if a message of that step had reached rank 0 and not rank 1."""
    model, diloco = made(sync_every=2)
    train(model, diloco, range(2))
    state = diloco.state_dict()
    train(model, diloco, range(2, 4))
    expected = diloco.shared_weights
    if dist.get_rank() == 1:
        diloco.load_state_dict(state)
    diloco.rebind()
    assert diloco.steps == 4
    assert diloco.state_dict()["fragments"][0]["version"] == 2
    for name, value in diloco.shared_weights.items():
        assert_bits(value, expected[name], name)
        assert_bits(model.get_parameter(name).detach(), value, name)
    momentum = flat(diloco.state_dict()["shared"]["momentum"].values())
    rows = [torch.empty_like(momentum) for _ in range(2)]
    dist.all_gather(rows, momentum)
    assert torch.equal(rows[0], rows[1])
    train(model, diloco, range(4, 8))
    assert_replicas_equal(diloco, model)
