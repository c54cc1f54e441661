"""Ranks that are killed, leave or are stopped: what the others notice, without a deadline."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import harness
import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER
from process_state import state_of, wait_until_asleep
from values import assert_bits

NOBODY = -1


def group_of(backend: str) -> harness.GroupSpec:
    return harness.GroupSpec(backend, key="failures", timeout=NEVER)


# --- a rank is killed ----------------------------------------------------------------------------


def connect() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    dist.barrier()


def come(flag: str, victim: int) -> None:
    """Connects, and says so to `ready`. The victim stays in here until it is killed."""
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(600)


def come_and_wait_for_the_death(flag: str, victim: int) -> None:
    """The victim dies while nobody communicates."""
    come(flag, victim)
    harness.wait_until(pathlib.Path(f"{flag}.killed").exists)


def body_reduce_until_error(size: int, flag: str) -> None:
    """All-reduces for ever. The victim's turn never ends."""
    come(flag, NOBODY)
    tensor = torch.ones(size)
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def body_wait_for_an_absent_rank(absent: int, flag: str) -> None:
    """All but one are inside an all-reduce."""
    come(flag, absent)
    dist.all_reduce(torch.ones(1000))


def body_receive_from(absent: int, flag: str) -> None:
    come(flag, absent)
    dist.recv(torch.zeros(100), absent)


def body_idle_then_reduce(absent: int, flag: str) -> None:
    """The next operation must not hang."""
    come_and_wait_for_the_death(flag, absent)
    dist.all_reduce(torch.ones(1000))


def body_group_with_a_dead_rank(absent: int, flag: str) -> None:
    come_and_wait_for_the_death(flag, absent)
    dist.new_group()


def ready(flag: str, pool: harness.RankPool) -> None:
    ranks = range(pool.world_size)
    harness.wait_until(lambda: all(pathlib.Path(f"{flag}.{rank}").exists() for rank in ranks))


def judge(outcomes: list[harness.Outcome], victim: int, backend: str) -> None:
    others = [o for o in outcomes if o.rank != victim]
    text = "\n".join(o.describe() for o in outcomes)
    assert outcomes[victim].kind == "died", text
    assert outcomes[victim].exitcode == -signal.SIGKILL, text
    assert all(o.kind == "error" for o in others), text
    for outcome in others:
        if backend != "gloo":
            assert f"rank {victim}" in outcome.error.lower(), text
            assert outcome.error_type == "DistBackendError", text


EVERY_SIZE = pytest.mark.nightly("the other sizes and ranks of a test that the quick level has")
ONLY_NEIGHBOURS = pytest.mark.beyond("gloo", "only the neighbours in its algorithm notice")


def kill(
    pool: harness.RankPool,
    victim: int,
    backend: str,
    shared: str,
    body: Callable[..., object],
    waits: bool = False,
    **arguments: Any,
) -> list[harness.Outcome]:
    """Starts ``body``, kills a rank once all have come, and returns what became of all.

    With ``waits`` the others sleep in a call by then.
    """
    flag = f"{shared}/ready"
    pool.start(body, group_of(backend), flag=flag, **arguments)
    ready(flag, pool)
    if waits:
        for rank in set(range(pool.world_size)) - {victim}:
            wait_until_asleep(pool.pid(rank))
    pool.signal(victim, signal.SIGKILL)
    pool.processes[victim].join()
    pathlib.Path(f"{flag}.killed").touch()
    return pool.collect(stop_on_failure=False)


@ONLY_NEIGHBOURS
@pytest.mark.parametrize(
    ("size", "victim"),
    [
        (1, 0),
        (1000, 2),
        (1 << 22, 0),
        pytest.param(1, 2, marks=EVERY_SIZE),
        pytest.param(1000, 0, marks=EVERY_SIZE),
        pytest.param(1 << 22, 2, marks=EVERY_SIZE),
    ],
)
def test_killed_in_the_middle_of_operations(new_pool, backend, shared, size, victim) -> None:
    outcomes = kill(new_pool(3), victim, backend, shared, body_reduce_until_error, size=size)
    judge(outcomes, victim, backend)


@ONLY_NEIGHBOURS
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=EVERY_SIZE)])
def test_killed_while_the_others_wait_for_it(new_pool, backend, shared, world_size) -> None:
    pool = new_pool(world_size)
    outcomes = kill(pool, 1, backend, shared, body_wait_for_an_absent_rank, waits=True, absent=1)
    judge(outcomes, 1, backend)


def test_killed_while_others_receive_from_it(new_pool, backend, shared) -> None:
    outcomes = kill(new_pool(3), 2, backend, shared, body_receive_from, waits=True, absent=2)
    judge(outcomes, 2, backend)


def test_killed_while_idle(new_pool, backend, shared) -> None:
    judge(kill(new_pool(3), 1, backend, shared, body_idle_then_reduce, absent=1), 1, backend)


@pytest.mark.beyond("gloo", "it waits for the timeout")
def test_a_group_with_a_dead_rank_is_refused(new_pool, backend, shared) -> None:
    outcomes = kill(new_pool(3), 1, backend, shared, body_group_with_a_dead_rank, absent=1)
    judge(outcomes, 1, backend)


KILLED_UNREAPED = """
    import sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=600))
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    print("ready", flush=True)
    if dist.get_rank() == 1:
        time.sleep(600)
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        print("raised", error, flush=True)
        sys.exit(3)
"""


def test_killed_and_left_a_zombie(backend, tmp_path) -> None:
    """Nobody reaps the dead rank: a launcher that is slow to wait() must not delay the others."""
    with harness.script(KILLED_UNREAPED, 3, tmp_path, args=[backend]) as processes:
        harness.wait_until(lambda: all("ready" in process.stdout() for process in processes))
        for rank in (0, 2):
            wait_until_asleep(processes[rank].pid)
        processes[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            processes[rank].wait(60)
        assert state_of(processes[1].pid) == "Z", "the victim was reaped, so this shows nothing"
        for rank in (0, 2):
            output = processes[rank].stdout()
            assert processes[rank].returncode == 3, output + processes[rank].stderr()
            assert "raised" in output
            if backend != "gloo":
                assert "rank 1" in output.lower(), output


def body_group_after_death(absent: int, flag: str) -> str:
    """A subgroup without the dead rank goes on working."""
    survivors = [r for r in range(dist.get_world_size()) if r != absent]
    group = dist.new_group(survivors)
    connect()
    if dist.get_rank() != absent:
        dist.all_reduce(torch.ones(10), group=group)
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == absent:
        time.sleep(600)
    try:
        dist.all_reduce(torch.ones(10))
    except RuntimeError as error:
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, torch.full((10,), float(len(survivors))))
        return str(error)
    raise AssertionError("the all-reduce with a dead rank came back")


@pytest.mark.beyond("gloo", "closes its other pairs too")
def test_survivors_group_goes_on(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    outcomes = kill(pool, 1, backend, shared, body_group_after_death, absent=1)
    text = "\n".join(o.describe() for o in outcomes)
    assert [o.kind for o in outcomes] == ["ok", "died", "ok"], text
    assert all("rank 1" in o.value.lower() for o in (outcomes[0], outcomes[2])), text


# --- a rank leaves by itself ---------------------------------------------------------------------


def body_one_raises() -> None:
    connect()
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        raise KeyError("the user's bug")
    dist.all_reduce(torch.ones(10))


@ONLY_NEIGHBOURS
def test_rank_that_leaves_by_an_exception(new_pool, backend) -> None:
    """The rank tears its group down on the way out; the others do not wait for the deadline."""
    pool = new_pool(3)
    pool.start(body_one_raises, group_of(backend))
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(o.describe() for o in outcomes)
    assert outcomes[1].error_type == "KeyError", text
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "error", text


EXCEPTION = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        raise KeyError("the user's bug")
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        print("raised", error)
        sys.exit(1)
"""


def test_process_that_ends_by_an_exception(backend, tmp_path) -> None:
    """The interpreter exits with the group alive: its own traceback, exit code 1, nobody hangs."""
    results = harness.run_script(EXCEPTION, 3, tmp_path, 60, expect=1, args=[backend])
    assert "KeyError" in results[1].stderr
    for rank in (0, 2):
        assert "raised" in results[rank].stdout
        if backend != "gloo":
            assert "rank 1" in results[rank].stdout.lower()


# --- a rank is stopped ---------------------------------------------------------------------------


def body_reduce_until_continued(flag: str) -> None:
    come(flag, NOBODY)
    done = torch.zeros(1)
    while done[0] == 0:
        done[0] = float(pathlib.Path(f"{flag}.continued").exists())
        dist.all_reduce(done, dist.ReduceOp.MAX)
    dist.barrier()


def test_stopped_rank_is_not_taken_for_dead(new_pool, backend, shared) -> None:
    """SIGSTOP for two seconds (a debugger, a laptop lid) delays the operation and no more."""
    pool = new_pool(2)
    flag = f"{shared}/ready"
    pool.start(body_reduce_until_continued, group_of(backend), flag=flag)
    ready(flag, pool)
    pool.signal(1, signal.SIGSTOP)
    time.sleep(2)  # it is late
    pool.signal(1, signal.SIGCONT)
    pathlib.Path(f"{flag}.continued").touch()
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok", "ok"], harness.RankFailure(outcomes)
