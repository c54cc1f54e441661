"""Processes that end without destroy_process_group, or by Ctrl-C: cleanly, with nothing left."""

from __future__ import annotations

import pathlib
import signal

import harness
import pytest
from pairs import nightly
from process_state import wait_until_asleep

LEAVE = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    group = dist.new_group()
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.barrier()
    print("done", flush=True)
    {end}
"""

ENDINGS = {
    "end of script": "pass",
    "destroy": "dist.destroy_process_group()",
    "sys.exit": "sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "global work kept": "keep = dist.all_reduce(torch.ones(1 << 20), async_op=True); keep.wait()",
    "thread": (
        "import threading, time; "
        "threading.Thread(target=lambda: (time.sleep(0.2), dist.barrier())).start()"
    ),
}


def segments() -> dict[str, int]:
    """The System V segments of this machine, by their id, and the processes that created them."""
    lines = pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {fields[1]: int(fields[4]) for fields in map(str.split, lines)}


def files() -> set[str]:
    """The POSIX shared memory of this machine."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def left_by(pids: set[int], old_segments: set[str], old_files: set[str]) -> list[str]:
    """Shared memory that these processes made, or that is named for them, since it was listed.

    Other programs on the machine may use the same library, so names and creators are looked at; a
    process that ended long ago may have had the same number, so only what is new counts.
    """
    made = [
        f"shmid {name}"
        for name, creator in segments().items()
        if creator in pids and name not in old_segments
    ]
    named = [
        f"/dev/shm/{name}"
        for name in files() - old_files
        if any(f"{pid:x}" in name or str(pid) in name for pid in pids)
    ]
    return made + named


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_is_clean(backend, tmp_path, ending) -> None:
    results = harness.run_script(LEAVE.format(end=ENDINGS[ending]), 2, tmp_path, 60, args=[backend])
    for result in results:
        assert "done" in result.stdout
        for word in ("Traceback", "terminate called", "Segmentation", "core dumped", "UCX  ERROR"):
            assert word not in result.stderr, result.describe()


LEFT = """
    import os, sys, time, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    dist.all_reduce(torch.ones(1 << 20))
    dist.barrier()
    if "kill" in sys.argv:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_nothing_is_left_in_shared_memory(backend, tmp_path, how) -> None:
    """Neither after a clean exit nor after SIGKILL of every rank."""
    before = set(segments()), files()
    with harness.script(LEFT, 2, tmp_path, args=[backend, how]) as processes:
        codes = [process.result(60).returncode for process in processes]
    assert codes == [{"exit": 0, "kill": -signal.SIGKILL}[how]] * 2
    pids = {process.pid for process in processes}
    harness.wait_until(lambda: not left_by(pids, *before))


# --- Ctrl-C --------------------------------------------------------------------------------------

INTERRUPTED = """
    import signal, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=600))
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        time.sleep(600)
    print("waiting", flush=True)
    {call}
"""

CALLS = {
    "all_reduce": "dist.all_reduce(torch.ones(1000))",
    "barrier": "dist.barrier()",
    "recv": "dist.recv(torch.ones(10), 1)",
    "wait": "dist.all_reduce(torch.ones(10), async_op=True).wait()",
}


@pytest.mark.beyond("gloo", "goes on waiting")
@pytest.mark.parametrize(
    "call",
    [
        "all_reduce",
        nightly("barrier", "it waits as all_reduce does"),
        nightly("recv", "test_signal of test_user_exits.py interrupts one"),
        "wait",
    ],
)
def test_control_c_in_an_operation(backend, tmp_path, call) -> None:
    source = INTERRUPTED.format(call=CALLS[call])
    with harness.script(source, 2, tmp_path, args=[backend]) as processes:
        harness.wait_until(lambda: "waiting" in processes[0].stdout())
        wait_until_asleep(processes[0].pid)
        processes[0].signal(signal.SIGINT)
        result = processes[0].result(60)
        assert result.returncode in (-signal.SIGINT, 130), result.describe()
        assert "KeyboardInterrupt" in result.stderr, result.describe()


# --- what others still need ----------------------------------------------------------------------

LEAVE_EARLY = """
    import sys, time, torch, torch.distributed as dist, q7x2
    dist.init_process_group(sys.argv[1])
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    def reconfigured():
        store.set(f"handle {{rank}}", q7x2.reconfigure_handle())
        handles = [store.get(f"handle {{other}}").decode() for other in range(2)]
        return q7x2.reconfigure("job", handles, timeout=30)
    group = {group}
    tensor = torch.ones(100_000)
    if rank == 1:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        del work
        store.set("leaves", "")
        {end}
    else:
        store.get("leaves")
        time.sleep(1.5)  # rank 0 is late
        dist.all_reduce(tensor, group=group)
        assert tensor[0] == 2
        print("done")
"""

LEAVINGS = {
    "end of script": ("dist.group.WORLD", "pass"),
    "destroy": ("dist.new_group()", "dist.destroy_process_group(group); time.sleep(600)"),
    "drop": ("reconfigured()", "del group; time.sleep(600)"),
}


@pytest.mark.beyond("gloo", "may leave others without what it has begun")
@pytest.mark.parametrize("how", LEAVINGS)
def test_a_rank_leaves_when_its_collectives_are_done(tmp_path, backend, how) -> None:
    """Rank 0 makes the call when rank 1 is already about to leave."""
    group, end = LEAVINGS[how]
    source = LEAVE_EARLY.format(group=group, end=end)
    with harness.script(source, 2, tmp_path, args=[backend]) as processes:
        result = processes[0].result(60)
    assert "done" in result.stdout, result.describe()
    assert result.returncode == 0, result.describe()
