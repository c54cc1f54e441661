"""Code of users that runs inside q7x2: it may raise, be slow, wait, or destroy its own group."""

from __future__ import annotations

import signal
import threading
import weakref

import harness
import pytest
import torch
import torch.distributed as dist
from process_state import wait_until_asleep
from values import assert_bits, meet

# --- on-completion hooks -------------------------------------------------------------------------

HOOK_THAT_RAISES = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    group = dist.new_group()
    calls = []
    def hook(info):
        calls.append(info.seq)
        raise ValueError("the user's bug")
    group._register_on_completion_hook(hook)
    waited, future, dropped = torch.ones(5), torch.ones(5), torch.ones(5, 2)
    dist.all_reduce(waited, group=group)
    value = dist.all_reduce(future, group=group, async_op=True).get_future().wait()
    dist.all_reduce(dropped[:, 0], group=group, async_op=True)
    group._wait_for_pending_works()
    assert waited[0] == 2 and value[0][0] == 2 and dropped[0, 0] == 2, (waited, value, dropped)
    assert len(calls) == len(set(calls)) == 3, calls
    dist.destroy_process_group()
    print("done")
"""


@pytest.mark.beyond("gloo", "has no hooks")
def test_hook_that_raises(tmp_path, backend) -> None:
    """It runs once for each work; the exception is a warning that names the operation."""
    for result in harness.run_script(HOOK_THAT_RAISES, 2, tmp_path, args=[backend]):
        assert "done" in result.stdout, result.describe()
        assert result.stderr.count("on-completion hook of all_reduce") == 3, result.describe()
        assert "ValueError: the user's bug" in result.stderr, result.describe()


HOOK_THAT_DESTROYS = """
    import sys, threading, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    group = {group}
    over = threading.Event()
    errors = []
    def hook(info):
        global group
        try:
            {end}
        except BaseException as error:
            errors.append(error)
        over.set()
    group._register_on_completion_hook(hook)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == 2
    assert over.wait(60), "the hook hangs"
    assert not errors, errors
    print("done")
"""

ENDS = {
    "destroy": ("dist.new_group()", "dist.destroy_process_group(group)"),
    "destroy the default group": ("dist.group.WORLD", "dist.destroy_process_group()"),
    "drop": ("dist.new_group()", "dist.destroy_process_group(group); group = None"),
    "wait": ("dist.new_group()", "group._wait_for_pending_works()"),
}


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.parametrize("end", ENDS)
def test_hook_that_destroys_its_group(tmp_path, backend, end) -> None:
    group, code = ENDS[end]
    source = HOOK_THAT_DESTROYS.format(group=group, end=code)
    for result in harness.run_script(source, 2, tmp_path, args=[backend]):
        assert "done" in result.stdout, result.describe()
        assert "Traceback" not in result.stderr, result.describe()


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.ranks(2, fresh=True)
def test_hooks_that_wait_for_each_other() -> None:
    """Two calls of the hook, both of which wait for all others."""
    group = dist.new_group()
    both = threading.Barrier(2)

    def hook(info) -> None:
        both.wait(60)
        group._wait_for_pending_works()

    group._register_on_completion_hook(hook)
    for _ in range(2):
        dist.all_reduce(torch.ones(10), group=group)
    group._wait_for_pending_works()
    assert not both.broken


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.ranks(2, fresh=True)
def test_slow_hook_delays_nobody() -> None:
    """Neither the works of its own group nor those of another one; pending works wait for it."""
    slow, other = dist.new_group(), dist.new_group()
    release = threading.Event()
    released = []
    slow._register_on_completion_hook(lambda info: released.append(release.wait(120)))
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, group=slow, async_op=True)
    work.wait()
    assert_bits(tensor, torch.full((10,), 2.0))
    assert work.is_completed()
    for _ in range(20):
        dist.all_reduce(torch.ones(10, 2)[:, 0], group=other)
        dist.all_reduce(torch.ones(10), group=other, async_op=True).get_future().wait()
    assert not released
    release.set()
    slow._wait_for_pending_works()
    assert released == [True]


STUCK_HOOK = """
    import signal, sys, threading, torch, torch.distributed as dist
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group(sys.argv[1])
    group = dist.new_group()
    group._register_on_completion_hook(lambda info: threading.Event().wait())
    dist.all_reduce(torch.ones(10), group=group)
    print("waiting", flush=True)
    group._wait_for_pending_works()
"""


@pytest.mark.beyond("gloo", "has no hooks")
def test_control_c_while_a_hook_is_stuck(tmp_path, backend) -> None:
    with harness.script(STUCK_HOOK, 2, tmp_path, args=[backend]) as processes:
        harness.wait_until(lambda: all("waiting" in process.stdout() for process in processes))
        wait_until_asleep(processes[0].pid)
        processes[0].signal(signal.SIGINT)
        result = processes[0].result(60)
        assert result.returncode in (-signal.SIGINT, 130), result.describe()
        assert "KeyboardInterrupt" in result.stderr, result.describe()


# --- callbacks of futures ------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_slow_callback_delays_nobody() -> None:
    rank, token = dist.get_rank(), torch.zeros(1)
    release = threading.Event()
    if rank == 1:
        dist.recv(token, 0)  # a future that is complete would run the callback in `then`
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    slow = None
    if rank == 0:
        slow = future.then(lambda f: release.wait(120))
        dist.send(token, 1)
    work.wait()
    assert future.done()
    assert_bits(future.value()[0], torch.full((10,), 2.0))
    assert work.is_completed()
    for _ in range(20):
        dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
    meet()  # also the other rank has not waited for the callback
    if slow is not None:
        assert not slow.done()
        release.set()
        assert slow.wait() is True


@pytest.mark.ranks(2)
def test_future_is_complete_after_the_wait() -> None:
    """Whichever thread completes it, and whether it was asked for before or after."""
    for turn in range(100):
        work = dist.all_reduce(torch.ones(10), async_op=True)
        before = work.get_future() if turn % 2 else None
        if turn % 4 < 2:
            work.wait()
        else:
            while not work.is_completed():
                pass
        future = work.get_future()
        assert future.done(), turn
        assert future.value()[0][0] == 2, turn
        assert before is None or before.done(), turn


CALLBACKS_THAT_RAISE = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    def fail(future):
        raise KeyError("the user's bug")
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    future.add_done_callback(fail)
    child = future.then(fail)
    future.add_done_callback(lambda f: sys.exit(9))
    last = future.then(lambda f: "last")
    try:
        child.wait()
    except Exception as error:
        print("raised", type(error).__name__, error)
    work.wait()
    assert last.wait() == "last" and tensor[0] == 2
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.destroy_process_group()
    print("done")
"""


def test_callbacks_that_raise(tmp_path, backend) -> None:
    for result in harness.run_script(CALLBACKS_THAT_RAISE, 2, tmp_path, args=[backend]):
        assert "done" in result.stdout, result.describe()
        assert "raised" in result.stdout, result.describe()
        assert "the user's bug" in result.stdout, result.describe()


@pytest.mark.beyond("gloo", "has two threads for all works")
@pytest.mark.ranks(2, fresh=True)
def test_wait_where_every_callback_is_stuck() -> None:
    """More callbacks than q7x2 has threads for, and none of them returns."""
    release = threading.Event()
    peer = 1 - dist.get_rank()
    works = [dist.irecv(torch.empty(10), peer, tag=tag) for tag in range(70)]
    stuck = [work.get_future().then(lambda f: release.wait(60)) for work in works]
    dist.barrier()  # a callback of a future that is complete would run here, in this thread
    for tag in range(70):
        dist.send(torch.ones(10), peer, tag=tag)
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    work.wait()
    assert future.done()
    assert_bits(tensor, torch.full((10,), 2.0))
    assert not any(each.done() for each in stuck)
    release.set()
    for each in stuck:
        each.wait()


# --- coalescing ----------------------------------------------------------------------------------


def exchange() -> list[dist.P2POp]:
    me = dist.get_rank()
    return [
        dist.P2POp(dist.isend, torch.full((4,), float(me)), 1 - me),
        dist.P2POp(dist.irecv, torch.zeros(4), 1 - me),
    ]


def check_exchange() -> None:
    ops = exchange()
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert_bits(ops[1].tensor, torch.full((4,), 1.0 - dist.get_rank()))


def coalesce_and_raise() -> None:
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(torch.ones(4), 0)
        raise KeyError("the user's bug")


@pytest.mark.beyond("gloo", "does not coalesce")
@pytest.mark.ranks(2, fresh=True)
def test_coalescing_survives_an_exception() -> None:
    """Of an operation in it, and of the code around the operations."""
    bad = [*exchange(), dist.P2POp(dist.isend, torch.ones(4), 1 - dist.get_rank(), tag=-1)]
    with pytest.raises(RuntimeError, match="Tag must be nonnegative"):
        dist.batch_isend_irecv(bad)
    check_exchange()
    with pytest.raises(KeyError, match="the user's bug"):
        coalesce_and_raise()
    check_exchange()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((4,), 2.0))


@pytest.mark.beyond("gloo", "does not coalesce")
@pytest.mark.ranks(2, fresh=True)
def test_abandoned_coalescing_keeps_no_tensors() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.group.WORLD._start_coalescing(torch.device("cpu"))  # an exception: its end never comes
    assert backend.supports_coalescing
    seen = []
    for _ in range(500):
        tensor = torch.ones(100)
        seen.append(weakref.ref(tensor))
        dist.broadcast(tensor, 0)
        del tensor
    alive = sum(each() is not None for each in seen)
    assert alive <= 130, alive
    check_exchange()
