"""``q7x2.reconfigure``: groups of processes that know each other's handles, without a store."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import timedelta
from typing import Any

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER
from harness import current_rank
from members import Board, check_group, error_of
from process_state import wait_until_asleep

FRESH: dict[str, Any] = {"init": "none", "fresh": True}


# --- members -------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5, **FRESH)
def test_processes_without_a_group_make_one(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    group = q7x2.reconfigure(1, board.handles(), timeout=NEVER)
    assert (group.rank(), group.size()) == (current_rank(), world_size)
    assert not dist.is_initialized()
    check_group(group)
    group.shutdown()


@pytest.mark.ranks(3, **FRESH)
def test_fewer_then_more(world_size: int, shared: str) -> None:
    """Scale to one each, to all, to two, and to all in another order."""
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    alone = q7x2.reconfigure(f"alone {me}", [handles[me]], timeout=NEVER)
    check_group(alone)
    group = q7x2.reconfigure("all", handles, group=alone)
    check_group(group)
    if me != 1:
        group = q7x2.reconfigure("two", [handles[0], handles[2]], group=group)
        assert group.rank() == (0 if me == 0 else 1)
        check_group(group)
    group = q7x2.reconfigure("turned", handles[::-1], group=group)
    assert group.rank() == world_size - 1 - me
    check_group(group)


@pytest.mark.ranks(3, **FRESH)
def test_a_joiner_takes_the_place_of_a_rank_that_leaves(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    if me < 2:
        group = q7x2.reconfigure(1, handles[:2], timeout=NEVER)
        check_group(group)
        board.barrier("made")
        if me == 0:
            group.shutdown()
            return
        group = q7x2.reconfigure(2, [handles[1], handles[2]], group=group)
    else:
        board.barrier("made")
        group = q7x2.reconfigure(2, [handles[1], handles[2]], timeout=NEVER)
    assert group.rank() == me - 1
    check_group(group)


@pytest.mark.ranks(4, **FRESH)
def test_unordered_members_keep_their_order_and_joiners_are_behind(
    world_size: int, shared: str
) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    group = q7x2.reconfigure(1, [handles[2], handles[1], handles[0]]) if me < 3 else None
    again = board.handles("again", None if group is None else q7x2.reconfigure_handle(group))
    # Old rank 1 leaves.
    if me != 1:
        group = q7x2.reconfigure(2, {again[0], again[2], again[3]}, timeout=NEVER, group=group)
        assert group.rank() == {2: 0, 0: 1, 3: 2}[me]
        check_group(group)
    board.barrier("end")


@pytest.mark.ranks(3, fresh=True)
def test_the_fabric_and_the_options_are_reused(world_size: int, shared: str) -> None:
    check_group()
    handles = q7x2.reconfigure_handles()
    before = json.loads(dist.group.WORLD._get_backend(torch.device("cpu")).fabric_json)
    if dist.get_rank() > 0:
        group = q7x2.reconfigure(1, handles[1:], group=dist.group.WORLD)
        backend = group._get_backend(torch.device("cpu"))
        after = json.loads(backend.fabric_json)
        assert after["made"] == before["made"]
        assert backend.options._timeout == timedelta(seconds=30)
        check_group(group)
        group.shutdown()
    Board(shared, world_size).barrier("end")


# --- deaths --------------------------------------------------------------------------------------

OWN_STORE = """
    import os, signal, sys, torch, torch.distributed as dist
    import q7x2
    dist.init_process_group(sys.argv[1])
    me = dist.get_rank()
    dist.all_reduce(torch.ones(1000))
    if me == 0:  # the store goes with it
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError:
        pass
    handles = q7x2.reconfigure_handles()
    group = q7x2.reconfigure("without 0", handles[1:], timeout=600, group=dist.group.WORLD)
    assert (group.rank(), group.size()) == (me - 1, 2)
    tensor = torch.full((5,), me * 1.0)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == 3, tensor
    group.shutdown()
    os._exit(0)  # torch would wait for the store
"""


def test_rank_0_dies_with_its_store(backend, tmp_path) -> None:
    with harness.script(OWN_STORE, 3, tmp_path, args=[backend]) as processes:
        results = [process.result(60) for process in processes]
    text = "\n".join(result.describe() for result in results)
    assert [result.returncode for result in results] == [-signal.SIGKILL, 0, 0], text


def body_replace_the_dead(shared: str) -> None:
    """Rank 1 of three is killed, rank 3 joins."""
    board = Board(shared, 4)
    me = current_rank()
    handles = board.handles()
    group = None
    if me < 3:
        group = q7x2.reconfigure(1, handles[:3], timeout=NEVER)
        check_group(group)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(torch.ones(1000), group=group)
        except dist.DistBackendError:
            pass
        # Who asks for the dead one is told at once, and may try again.
        error = error_of(lambda: q7x2.reconfigure(2, handles[:3], timeout=NEVER, group=group))
        assert "failed" in error
    group = q7x2.reconfigure(3, [handles[0], handles[3], handles[2]], timeout=NEVER, group=group)
    assert group.rank() == {0: 0, 3: 1, 2: 2}[me]
    check_group(group)


def test_a_joiner_replaces_a_dead_rank(new_pool, backend, shared) -> None:
    pool = new_pool(4)
    no_group = harness.GroupSpec(backend, key="join", init="none")
    pool.start(body_replace_the_dead, no_group, 90, shared=shared)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(outcome.describe() for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["ok", "died", "ok", "ok"], text


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.ranks(3, **FRESH)
def test_a_used_uuid_is_refused_before_anything_is_torn_down(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    group = None
    if me < 2:
        group = q7x2.reconfigure(7, handles[:2], timeout=NEVER)
    board.barrier("made")
    error = error_of(lambda: q7x2.reconfigure(7, handles, timeout=NEVER, group=group))
    assert "already used" in error
    if group is not None:
        check_group(group)  # it goes on
    check_group(q7x2.reconfigure(8, handles, timeout=NEVER, group=group))


@pytest.mark.ranks(3, **FRESH)
def test_different_handles_raise_everywhere(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    wrong = handles if me < 2 else [handles[0], handles[2], handles[1]]
    error = error_of(lambda: q7x2.reconfigure(1, wrong, timeout=NEVER))
    assert "different lists" in error
    assert error.count(f"pid {os.getpid()} on ") >= 1
    check_group(q7x2.reconfigure(2, handles, timeout=NEVER))


@pytest.mark.ranks(3, **FRESH)
def test_another_uuid_is_a_deadline_that_names_the_rank(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    uuid = "typo" if me == 1 else "right"
    error = error_of(lambda: q7x2.reconfigure(uuid, handles, timeout=5))
    assert "timed out after 5000 ms, waiting for rank" in error
    if me != 1:
        assert "waiting for rank 1 (pid" in error
    board.barrier("failed")
    check_group(q7x2.reconfigure("again", handles, timeout=NEVER))


@pytest.mark.ranks(2, **FRESH)
def test_wrong_arguments(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    me = current_rank()
    handles = board.handles()
    own, other = handles[me], handles[1 - me]
    assert "does not name this process" in error_of(lambda: q7x2.reconfigure(1, [other]))
    assert "does not name this process" in error_of(lambda: q7x2.reconfigure(1, []))
    assert "twice" in error_of(lambda: q7x2.reconfigure(1, [own, other, own]))
    assert "expected a handle" in error_of(lambda: q7x2.reconfigure(1, [own, "nonsense"]))
    assert "damaged" in error_of(lambda: q7x2.reconfigure(1, [own, other + "00"]))
    with pytest.raises(ValueError, match="timeout must be positive"):
        q7x2.reconfigure(1, handles, timeout=0)
    with pytest.raises(TypeError, match="got one text"):
        q7x2.reconfigure(1, own)
    check_group(q7x2.reconfigure(1, handles, timeout=NEVER))  # nothing of that has used the uuid


def interrupt_and_reconfigure(handles: list[str]) -> None:
    def interrupt() -> None:
        wait_until_asleep(os.getpid())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    q7x2.reconfigure(1, handles, timeout=NEVER)


@pytest.mark.ranks(2, **FRESH)
def test_ctrl_c_ends_the_wait(world_size: int, shared: str) -> None:
    board = Board(shared, world_size)
    handles = board.handles()
    if current_rank() == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            interrupt_and_reconfigure(handles)
    board.barrier("interrupted")
    if current_rank() == 1:
        assert "KeyboardInterrupt" in error_of(lambda: q7x2.reconfigure(1, handles, timeout=NEVER))
    check_group(q7x2.reconfigure(2, handles, timeout=NEVER))
