"""``dist.shrink_group``: ranks die or leave, and the others go on."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import time
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER, shorten_timeout
from hook_training import (
    HOOKS,
    attached,
    residuals,
    sgd,
    sum_over_ranks,
    train,
)
from members import check_group, die, reduce_until_error
from torch.distributed.distributed_c10d import SHRINK_ABORT
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_same_on_all_ranks

OTHER_RANKS = pytest.mark.nightly("other ranks die than in the quick level")


def group_of(backend: str) -> harness.GroupSpec:
    return harness.GroupSpec(backend, key="shrink", timeout=NEVER)


def q7x2_of(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


# --- ranks are killed ----------------------------------------------------------------------------


def body_shrink(deaths: list[list[int]]) -> list[int]:
    """After each of the deaths, by original rank, the others shrink and go on."""
    me = dist.get_rank()
    alive = list(range(dist.get_world_size()))
    for victims in deaths:
        check_group()
        if me in victims:
            die()
        reduce_until_error()
        group = dist.shrink_group([alive.index(victim) for victim in victims])
        alive = [rank for rank in alive if rank not in victims]
        assert group is dist.group.WORLD
        assert (dist.get_rank(), dist.get_world_size()) == (alive.index(me), len(alive))
        assert dist.get_backend(group) == "q7x2"
        check_group()
    dist.destroy_process_group()
    return alive


@pytest.mark.parametrize(
    ("world_size", "deaths"),
    [
        (2, [[1]]),
        (3, [[0]]),
        (4, [[3], [2], [0]]),
        pytest.param(2, [[0]], marks=OTHER_RANKS),
        pytest.param(3, [[1]], marks=OTHER_RANKS),
        pytest.param(4, [[1, 3]], marks=OTHER_RANKS),
        pytest.param(4, [[2], [0]], marks=OTHER_RANKS),
    ],
)
def test_ranks_are_killed_in_a_collective(
    new_pool, backend, world_size: int, deaths: list[list[int]]
) -> None:
    pool = new_pool(world_size)
    pool.start(body_shrink, group_of(backend), 90, deaths=deaths)
    outcomes = pool.collect(stop_on_failure=False)
    killed = {rank for victims in deaths for rank in victims}
    text = "\n".join(outcome.describe() for outcome in outcomes)
    for outcome in outcomes:
        assert outcome.kind == ("died" if outcome.rank in killed else "ok"), text
        if outcome.rank not in killed:
            assert outcome.value == [r for r in range(world_size) if r not in killed]


def body_another_dies_meanwhile() -> None:
    """Ranks 3 and 2 are dead; the others know of rank 3 only."""
    me = dist.get_rank()
    check_group()
    if me == 3:
        die()
    reduce_until_error()
    if me == 2:
        time.sleep(1)  # it is late
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"rank 2 \(pid \d+ on .*failed"):
        dist.shrink_group([3])
    dist.shrink_group([2, 3])
    check_group()


def test_another_rank_dies_while_the_others_shrink(new_pool, backend) -> None:
    pool = new_pool(4)
    pool.start(body_another_dies_meanwhile, group_of(backend), 90)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["ok", "ok", "died", "died"], text


# torchrun's store lives in the agent, which ends the other workers if one dies. So the test is the
# agent here.
AGENT_STORE = """
    import os, signal, sys, time, torch, torch.distributed as dist
    if sys.argv[2] == "hosts":  # one for each rank: no shared memory, deaths are seen by TCP
        os.environ["Q7X2_HOST_ID"] = os.environ["RANK"]
    dist.init_process_group(sys.argv[1])
    me = dist.get_rank()
    dist.all_reduce(torch.ones(1000))
    if me == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError:
        pass
    group = dist.shrink_group([0])
    assert (dist.get_rank(), dist.get_world_size()) == (me - 1, 2)
    tensor = torch.full((5,), me * 1.0)
    dist.all_reduce(tensor)
    assert tensor[0] == 3, tensor
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks_are", ["on one host", "hosts"])
def test_rank_0_dies_and_the_store_is_the_agents(backend, tmp_path, ranks_are: str) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    with harness.script(AGENT_STORE, 3, tmp_path, env, [backend, ranks_are]) as processes:
        results = [process.result(60) for process in processes]
    text = "\n".join(result.describe() for result in results)
    assert [result.returncode for result in results] == [-signal.SIGKILL, 0, 0], text


# --- a healthy group -----------------------------------------------------------------------------


@pytest.mark.ranks(3, 4, fresh=True)
def test_a_healthy_group_reuses_the_fabric_and_the_connections(
    world_size: int, shared: str
) -> None:
    check_group()
    old = q7x2_of()
    before = json.loads(old.fabric_json)
    done = pathlib.Path(shared, "done")
    last = world_size - 1
    if dist.get_rank() == last:
        while not all(pathlib.Path(f"{done}{rank}").exists() for rank in range(last)):
            time.sleep(0.01)
        return
    transports = {rank: old.transports(rank) for rank in range(last) if rank != dist.get_rank()}
    dist.shrink_group([last])
    new = q7x2_of()
    assert new is not old
    after = json.loads(new.fabric_json)
    assert after["made"] == before["made"]  # nothing was measured anew
    assert {rank: new.transports(rank) for rank in transports} == transports
    check_group()
    pathlib.Path(f"{done}{dist.get_rank()}").touch()


@pytest.mark.ranks(4, fresh=True)
def test_a_group_that_is_not_the_default_one(shared: str) -> None:
    me = dist.get_rank()
    group = dist.new_group([0, 1, 3])
    if me != 2:
        check_group(group)
        if me != 1:
            smaller = dist.shrink_group([1], group=group)
            assert smaller.size() == 2
            assert dist.get_process_group_ranks(smaller) == [0, 3]
            check_group(smaller)
    check_group()  # the default group is as before


@pytest.mark.ranks(3, fresh=True)
def test_abort_ends_what_is_in_progress(shared: str) -> None:
    check_group()
    me = dist.get_rank()
    if me == 2:
        while not pathlib.Path(shared, "aborted").exists():
            time.sleep(0.01)
        with pytest.raises(dist.DistBackendError, match="aborted"):
            dist.all_reduce(torch.ones(10))
        return
    work = dist.barrier(async_op=True) if me == 0 else None  # the others never come
    dist.shrink_group([2], shrink_flags=SHRINK_ABORT)
    if work is not None:
        with pytest.raises(dist.DistBackendError, match="aborted"):
            work.wait()
    pathlib.Path(shared, "aborted").touch()
    check_group()


@pytest.mark.ranks(3, fresh=True)
def test_options_are_those_of_the_old_group_or_the_callers(shared: str) -> None:
    if dist.get_rank() == 2:
        return
    dist.shrink_group([2], pg_options=q7x2.Options(algorithms="ring"))
    assert q7x2_of().options.algorithms == "ring"
    check_group()


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.ranks(4, fresh=True)
def test_different_lists_raise_everywhere_and_may_be_corrected(shared: str) -> None:
    me = dist.get_rank()
    done = pathlib.Path(shared, "done")
    if me == 3:
        while not all(pathlib.Path(f"{done}{rank}").exists() for rank in range(3)):
            time.sleep(0.01)
        return
    with pytest.raises(dist.DistBackendError, match="different lists") as raised:
        dist.shrink_group([1, 3] if me == 2 else [3])
    assert "its ranks 0, 1, 2" in str(raised.value)
    assert "its ranks 0, 2" in str(raised.value)
    dist.shrink_group([3])
    check_group()
    pathlib.Path(f"{done}{me}").touch()


@pytest.mark.ranks(2, fresh=True)
def test_wrong_arguments(shared: str) -> None:
    me = dist.get_rank()
    for wrong, error in (
        ([], ValueError),
        ([0, 1], ValueError),
        ([me], RuntimeError),
        ([7], ValueError),
    ):
        with pytest.raises(error):
            dist.shrink_group(wrong)
    backend = q7x2_of()
    assert backend.supports_shrinking
    for wrong, match in (
        ([], "no rank is excluded"),
        ([me], "must not call it"),
        ([-1], "not in a group of 2"),
        ([1 - me, 1 - me], "excluded twice"),
    ):
        with pytest.raises(RuntimeError, match=match):
            backend.shrink(wrong)
    with pytest.raises(RuntimeError, match="expected the flags"):
        backend.shrink([1 - me], 7)
    check_group()


@pytest.mark.ranks(3, fresh=True)
def test_a_rank_that_does_not_come_is_named(shared: str) -> None:
    shorten_timeout(3)
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=r"timed out .*waiting for rank 1 \(pid"):
            dist.shrink_group([2])
        pathlib.Path(shared, "done").touch()
    while not pathlib.Path(shared, "done").exists():
        time.sleep(0.01)


# --- hooks ---------------------------------------------------------------------------------------


def body_train_on(hook_name: str, victim: int) -> None:
    """The residuals of the others go on with the smaller group."""
    hook = HOOKS[hook_name]
    size = dist.get_world_size()
    ddp, at_work = attached(hook)
    train(ddp, sgd(ddp), range(3))
    mine = at_work.state_dict()
    lost = at_work.empty_state_dict(size)["local"][f"rank_{victim}"]
    if dist.get_rank() == victim:
        die()
    reduce_until_error()
    dist.shrink_group([victim])

    ddp = DDP(copy.deepcopy(ddp.module))
    at_work = q7x2.attach(ddp, hook)
    states: list = [None] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    states.append({**mine, "shared": {}, "local": {f"rank_{victim}": lost}})
    owed = {
        name: sum_over_ranks(residual)
        for name, residual in next(iter(mine["local"].values()))["residual"].items()
    }
    at_work.load_state_dict(states)
    for name, residual in residuals(at_work).items():
        torch.testing.assert_close(sum_over_ranks(residual), owed[name])
    train(ddp, sgd(ddp), range(3, 6))
    assert_same_on_all_ranks(list(ddp.parameters()))


@pytest.mark.parametrize(("hook", "victim"), [("powersgd", 1), ("topk", 0)])
def test_a_hook_goes_on_with_its_residuals(new_pool, backend, hook: str, victim: int) -> None:
    pool = new_pool(3)
    pool.start(body_train_on, group_of(backend), 90, hook_name=hook, victim=victim)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [o.kind for o in outcomes] == ["died" if r == victim else "ok" for r in range(3)], text
