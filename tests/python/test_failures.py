"""Ranks that die, are interrupted, fork or leave: the others notice, and nothing stays behind."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import harness
import pytest
import torch
import torch.distributed as dist
from values import assert_bits

# "All others raise within 1 s", plus what a loaded two-core machine takes to run the handlers.
NOTICE = 1.0
SLACK = 1.0


def group_of(backend: str, timeout: float = 30.0) -> harness.GroupSpec:
    return harness.GroupSpec(backend, key="failures", timeout=timeout)


# --- a rank is killed ----------------------------------------------------------------------------


def connect() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    dist.barrier()


def body_reduce_until_error(size: int, flag: str) -> float:
    """All-reduces for ever; returns when the error came. The victim's turn never ends."""
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    tensor = torch.ones(size)
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def body_wait_for_an_absent_rank(victim: int, flag: str) -> None:
    """All but the victim are inside an all-reduce; the victim sleeps."""
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.all_reduce(torch.ones(1000))


def body_receive_from(victim: int, flag: str) -> None:
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.recv(torch.zeros(100), victim)


def body_idle_then_reduce(victim: int, flag: str, killed: str) -> None:
    """The victim dies while nobody communicates; the next operation must not hang."""
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(60)
    while not pathlib.Path(killed).exists():
        time.sleep(0.01)
    time.sleep(0.3)
    dist.all_reduce(torch.ones(1000))


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


@ONLY_NEIGHBOURS
@pytest.mark.parametrize("size", [1, 1000, 1 << 22])
@pytest.mark.parametrize("victim", [0, 2])
def test_killed_in_the_middle_of_operations(new_pool, backend, shared, size, victim) -> None:
    pool = new_pool(3)
    pool.start(body_reduce_until_error, group_of(backend), size=size, flag=f"{shared}/ready")
    ready(f"{shared}/ready", 3, pool)
    at = time.monotonic()
    pool.signal(victim, signal.SIGKILL)
    judge(pool.collect(), victim, at, NOTICE, backend)


@ONLY_NEIGHBOURS
@pytest.mark.parametrize("world_size", [2, 4])
def test_killed_while_the_others_wait_for_it(new_pool, backend, shared, world_size) -> None:
    pool = new_pool(world_size)
    pool.start(body_wait_for_an_absent_rank, group_of(backend), victim=1, flag=f"{shared}/ready")
    ready(f"{shared}/ready", world_size, pool)
    at = time.monotonic()
    pool.signal(1, signal.SIGKILL)
    judge(pool.collect(), 1, at, NOTICE, backend)


def test_killed_while_others_receive_from_it(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    pool.start(body_receive_from, group_of(backend), victim=2, flag=f"{shared}/ready")
    ready(f"{shared}/ready", 3, pool)
    at = time.monotonic()
    pool.signal(2, signal.SIGKILL)
    judge(pool.collect(), 2, at, NOTICE, backend)


def test_killed_while_idle(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    pool.start(
        body_idle_then_reduce,
        group_of(backend),
        victim=1,
        flag=f"{shared}/ready",
        killed=f"{shared}/killed",
    )
    ready(f"{shared}/ready", 3, pool)
    pool.signal(1, signal.SIGKILL)
    pathlib.Path(shared, "killed").touch()
    judge(pool.collect(), 1, time.monotonic() + 0.3, NOTICE, backend)


def body_group_with_a_dead_rank(victim: int, flag: str, killed: str) -> None:
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == victim:
        time.sleep(60)
    while not pathlib.Path(killed).exists():
        time.sleep(0.01)
    time.sleep(0.3)
    dist.new_group()


@pytest.mark.beyond("gloo", "it waits for the timeout")
def test_a_group_with_a_dead_rank_is_refused(new_pool, backend, shared) -> None:
    pool = new_pool(3)
    pool.start(
        body_group_with_a_dead_rank,
        group_of(backend),
        victim=1,
        flag=f"{shared}/ready",
        killed=f"{shared}/killed",
    )
    ready(f"{shared}/ready", 3, pool)
    pool.signal(1, signal.SIGKILL)
    pathlib.Path(shared, "killed").touch()
    # A rank that refuses stays for a moment, so that the others hear of it.
    judge(pool.collect(), 1, time.monotonic() + 0.3, NOTICE + 2, backend)


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
    pool.start(body_group_after_death, group_of(backend), victim=1, flag=f"{shared}/ready")
    ready(f"{shared}/ready", 3, pool)
    pool.signal(1, signal.SIGKILL)
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


# --- exit without destroy_process_group ----------------------------------------------------------

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


def segments(pids: set[int]) -> list[str]:
    """System V shared memory that these processes created, and POSIX shared memory named for them.

    Other programs on the machine may use the same library, so names and creators are looked at.
    """
    left = []
    for line in pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[4]) in pids:
            left.append(f"shmid {fields[1]}, {fields[3]} bytes, {fields[6]} attached")
    for path in pathlib.Path("/dev/shm").iterdir():
        if any(f"{pid:x}" in path.name or str(pid) in path.name for pid in pids):
            left.append(str(path))
    return left


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
    with harness.script(LEFT, 2, tmp_path, args=[backend, how]) as processes:
        codes = [process.result(60).returncode for process in processes]
    assert codes == [{"exit": 0, "kill": -signal.SIGKILL}[how]] * 2
    end = time.monotonic() + 2
    while left := segments({process.pid for process in processes}):
        assert time.monotonic() < end, left
        time.sleep(0.1)


# --- Ctrl-C --------------------------------------------------------------------------------------

INTERRUPTED = """
    import signal, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=50))
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        time.sleep(50)
    print("waiting", flush=True)
    try:
        {call}
    except KeyboardInterrupt:
        print("KeyboardInterrupt", time.monotonic(), flush=True)
        raise
"""

CALLS = {
    "all_reduce": "dist.all_reduce(torch.ones(1000))",
    "barrier": "dist.barrier()",
    "recv": "dist.recv(torch.ones(10), 1)",
    "wait": "dist.all_reduce(torch.ones(10), async_op=True).wait()",
}


@pytest.mark.beyond("gloo", "goes on waiting")
@pytest.mark.parametrize("call", CALLS)
def test_control_c_in_an_operation(backend, tmp_path, call) -> None:
    source = INTERRUPTED.format(call=CALLS[call])
    with harness.script(source, 2, tmp_path, args=[backend]) as processes:
        end = time.monotonic() + 60
        while "waiting" not in processes[0].stdout():
            assert time.monotonic() < end, processes[0].stderr()
            time.sleep(0.05)
        time.sleep(0.5)
        at = time.monotonic()
        processes[0].signal(signal.SIGINT)
        result = processes[0].result(15)
        assert result.returncode in (-signal.SIGINT, 130), result.describe()
        assert "KeyboardInterrupt" in result.stderr, result.describe()
        raised = float(result.stdout.split("KeyboardInterrupt ")[1].split()[0])
        assert raised - at < 1.0, result.describe()


# --- fork and spawn ------------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index * index))


@pytest.mark.ranks(2, fresh=True)
def test_data_loader_workers(world_size: int) -> None:
    """Workers forked after init; batches and collectives in turn."""
    dist.all_reduce(torch.ones(100_000))
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        total = torch.zeros(8)
        for batch in loader:
            total += batch.sum(0)
            step = torch.ones(50_000)
            dist.all_reduce(step)
            assert step[0] == world_size
        dist.all_reduce(total)
        assert_bits(total, torch.full((8,), world_size * float(sum(i * i for i in range(64)))))


@pytest.mark.ranks(2, fresh=True)
def test_fork_after_init_is_harmless(world_size: int) -> None:
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(7)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    work.wait()
    assert_bits(tensor, torch.full((1 << 18,), float(world_size**2)))


@pytest.mark.ranks(2, fresh=True)
def test_forked_child_that_exits_normally(world_size: int) -> None:
    """A child that runs Python's and C++'s exit handlers must not hang or disturb the parent."""
    dist.all_reduce(torch.ones(1000))
    child = os.fork()
    if child == 0:
        try:
            import ctypes

            ctypes.CDLL(None).exit(5)
        finally:
            os._exit(99)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        raise AssertionError("the forked child hung in its exit handlers")
    assert os.waitstatus_to_exitcode(status) == 5
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((1000,), float(world_size)))


@pytest.mark.beyond("gloo", "hangs in the child")
@pytest.mark.ranks(2, fresh=True)
def test_forked_child_that_uses_the_group_gets_an_error() -> None:
    dist.all_reduce(torch.ones(1000))
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(10))
        except RuntimeError as error:
            os._exit(5 if "fork" in str(error).lower() else 6)
        os._exit(7)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        raise AssertionError("the forked child hung in the operation")
    assert os.waitstatus_to_exitcode(status) == 5
    dist.barrier()


def subprocess_of_a_rank() -> int:
    out = subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True, check=True)
    return len(out.stdout)


@pytest.mark.ranks(2)
def test_subprocesses(world_size: int) -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert subprocess_of_a_rank() == 6
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((10,), float(world_size**2)))


SPAWNED = """
    import sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp

    def run(rank, backend, path):
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=2)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert tensor[0] == 2
        dist.destroy_process_group()

    if __name__ == "__main__":
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(run, args=(sys.argv[1], f"{directory}/store"), nprocs=2)
        print("spawned")
"""


def test_torch_multiprocessing_spawn(backend, tmp_path) -> None:
    path = tmp_path / "spawn.py"
    path.write_text(textwrap.dedent(SPAWNED))
    done = subprocess.run(
        [sys.executable, str(path), backend], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "spawned" in done.stdout


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


def body_slow(flag: str) -> None:
    connect()
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    end = time.monotonic() + 3.5
    done = torch.zeros(1)
    while done[0] == 0:
        done[0] = float(time.monotonic() > end)
        dist.all_reduce(done, dist.ReduceOp.MAX)
    dist.barrier()
