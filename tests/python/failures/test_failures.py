"""Ranks that are killed, leave or are stopped: what the others notice, and how soon."""

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
from values import assert_bits

# "All others raise within 1 s", plus what a loaded two-core machine takes to run the handlers.
NOTICE = 1.0
SLACK = 1.0
NOBODY = -1


def group_of(backend: str, timeout: float = 30.0) -> harness.GroupSpec:
    return harness.GroupSpec(backend, key="failures", timeout=timeout)


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
        time.sleep(60)


def come_and_wait_for_the_death(flag: str, victim: int) -> None:
    """The victim dies while nobody communicates."""
    come(flag, victim)
    while not pathlib.Path(f"{flag}.killed").exists():
        time.sleep(0.01)
    time.sleep(0.3)


def body_reduce_until_error(size: int, flag: str) -> float:
    """All-reduces for ever; returns when the error came. The victim's turn never ends."""
    come(flag, NOBODY)
    tensor = torch.ones(size)
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def body_wait_for_an_absent_rank(victim: int, flag: str) -> None:
    """All but the victim are inside an all-reduce; the victim sleeps."""
    come(flag, victim)
    dist.all_reduce(torch.ones(1000))


def body_receive_from(victim: int, flag: str) -> None:
    come(flag, victim)
    dist.recv(torch.zeros(100), victim)


def body_idle_then_reduce(victim: int, flag: str) -> None:
    """The next operation must not hang."""
    come_and_wait_for_the_death(flag, victim)
    dist.all_reduce(torch.ones(1000))


def body_group_with_a_dead_rank(victim: int, flag: str) -> None:
    come_and_wait_for_the_death(flag, victim)
    dist.new_group()


def ready(flag: str, ranks: int, pool: harness.RankPool) -> None:
    end = time.monotonic() + 30
    while not all(pathlib.Path(f"{flag}.{r}").exists() for r in range(ranks)):
        if time.monotonic() > end:
            raise harness.RankFailure(pool.collect(grace=0.1))
        time.sleep(0.01)
    time.sleep(0.3)


def judge(
    outcomes: list[harness.Outcome], victim: int, killed_at: float, within: float, backend: str
) -> None:
    others = [o for o in outcomes if o.rank != victim]
    text = "\n".join(o.describe() for o in outcomes)
    assert outcomes[victim].kind == "died", text
    assert outcomes[victim].exitcode == -signal.SIGKILL, text
    assert all(o.kind == "error" for o in others), text
    for outcome in others:
        assert outcome.at - killed_at < within + SLACK, f"{outcome.at - killed_at:.2f} s\n{text}"
        if backend != "gloo":
            assert f"rank {victim}" in outcome.error.lower(), text
            assert outcome.error_type == "DistBackendError", text


ONLY_NEIGHBOURS = pytest.mark.beyond("gloo", "only the neighbours in its algorithm notice")


def kill(
    pool: harness.RankPool,
    rank: int,
    backend: str,
    shared: str,
    body: Callable[..., object],
    **arguments: Any,
) -> float:
    """Starts ``body`` and kills ``rank`` once all ranks have come; returns when that was."""
    flag = f"{shared}/ready"
    pool.start(body, group_of(backend), flag=flag, **arguments)
    ready(flag, pool.world_size, pool)
    at = time.monotonic()
    pool.signal(rank, signal.SIGKILL)
    pathlib.Path(f"{flag}.killed").touch()
    return at


@ONLY_NEIGHBOURS
@pytest.mark.parametrize("size", [1, 1000, 1 << 22])
@pytest.mark.parametrize("victim", [0, 2])
def test_killed_in_the_middle_of_operations(new_pool, backend, shared, size, victim) -> None:
    pool = new_pool(3)
    at = kill(pool, victim, backend, shared, body_reduce_until_error, size=size)
    judge(pool.collect(), victim, at, NOTICE, backend)


@ONLY_NEIGHBOURS
@pytest.mark.parametrize("world_size", [2, 4])
def test_killed_while_the_others_wait_for_it(new_pool, backend, shared, world_size) -> None:
    pool = new_pool(world_size)
    at = kill(pool, 1, backend, shared, body_wait_for_an_absent_rank, victim=1)
    judge(pool.collect(), 1, at, NOTICE, backend)


def test_killed_while_others_receive_from_it(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    at = kill(pool, 2, backend, shared, body_receive_from, victim=2)
    judge(pool.collect(), 2, at, NOTICE, backend)


def test_killed_while_idle(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    at = kill(pool, 1, backend, shared, body_idle_then_reduce, victim=1)
    judge(pool.collect(), 1, at + 0.3, NOTICE, backend)


@pytest.mark.beyond("gloo", "it waits for the timeout")
def test_a_group_with_a_dead_rank_is_refused(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    at = kill(pool, 1, backend, shared, body_group_with_a_dead_rank, victim=1)
    # A rank that refuses stays for a moment, so that the others hear of it.
    judge(pool.collect(), 1, at + 0.3, NOTICE + 2, backend)


KILLED_UNREAPED = """
    import sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=30))
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    print("ready", flush=True)
    if dist.get_rank() == 1:
        time.sleep(60)
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        print(f"raised {time.monotonic()} {error}", flush=True)
        sys.exit(3)
"""


def test_killed_and_left_a_zombie(backend, tmp_path) -> None:
    """Nobody reaps the dead rank: a launcher that is slow to wait() must not delay the others."""
    with harness.script(KILLED_UNREAPED, 3, tmp_path, args=[backend]) as processes:
        end = time.monotonic() + 60
        while not all("ready" in process.stdout() for process in processes):
            assert time.monotonic() < end, processes[0].stderr()
            time.sleep(0.05)
        time.sleep(0.5)
        at = time.monotonic()
        processes[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            processes[rank].wait(15)
        status = pathlib.Path(f"/proc/{processes[1].pid}/stat").read_text()
        assert ") Z " in status, "the victim was reaped, so this shows nothing"
        for rank in (0, 2):
            output = processes[rank].stdout()
            assert processes[rank].returncode == 3, output + processes[rank].stderr()
            raised = float(output.split("raised ")[1].split()[0])
            assert raised - at < NOTICE + SLACK, output
            if backend != "gloo":
                assert "rank 1" in output.lower(), output


def body_group_after_death(victim: int, flag: str) -> str:
    """A subgroup without the dead rank goes on working."""
    survivors = [r for r in range(dist.get_world_size()) if r != victim]
    group = dist.new_group(survivors)
    connect()
    if dist.get_rank() != victim:
        dist.all_reduce(torch.ones(10), group=group)
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(60)
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
    kill(pool, 1, backend, shared, body_group_after_death, victim=1)
    outcomes = pool.collect(stop_on_failure=False)
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
    start = time.monotonic()
    pool.start(body_one_raises, group_of(backend))
    outcomes = pool.collect()
    text = "\n".join(o.describe() for o in outcomes)
    assert outcomes[1].error_type == "KeyError", text
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "error", text
        assert outcome.at - start < 8, text


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


def body_slow(flag: str) -> None:
    come(flag, NOBODY)
    end = time.monotonic() + 3.5
    done = torch.zeros(1)
    while done[0] == 0:
        done[0] = float(time.monotonic() > end)
        dist.all_reduce(done, dist.ReduceOp.MAX)
    dist.barrier()


def test_stopped_rank_is_not_taken_for_dead(new_pool, backend, shared) -> None:
    """SIGSTOP for two seconds (a debugger, a laptop lid) delays the operation and no more."""
    pool = new_pool(2)
    pool.start(body_slow, group_of(backend), flag=f"{shared}/ready")
    ready(f"{shared}/ready", 2, pool)
    pool.signal(1, signal.SIGSTOP)
    time.sleep(2)
    pool.signal(1, signal.SIGCONT)
    outcomes = pool.collect()
    assert [o.kind for o in outcomes] == ["ok", "ok"], harness.RankFailure(outcomes)
