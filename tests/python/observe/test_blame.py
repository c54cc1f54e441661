"""``q7x2 blame``: real jobs that go wrong, and the one line that says why."""

from __future__ import annotations

import pathlib
import re
import signal
import sys
import textwrap
from collections.abc import Sequence

import harness
import pytest
from blame_command import blame

from tests import lab
from tests.lab import namespaces

PREAMBLE = """
    import datetime
    import os
    import pathlib
    import signal
    import sys
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2", timeout=datetime.timedelta(seconds=4))
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(100))
    dist.barrier()


    def call(function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except (dist.DistBackendError, RuntimeError) as error:
            print(error)


    store = dist.distributed_c10d._get_default_store()


    def call_and_say(function, *args):
        work = function(*args, async_op=True)
        store.set(f"called by {rank}", "")
        call(work.wait)


    def await_calls_of(*ranks):
        store.wait([f"called by {other}" for other in ranks])


    dumps = pathlib.Path(os.environ["Q7X2_DUMP"])


    def await_dumps_of(count):
        while len(list(dumps.glob("*.json"))) < count:
            time.sleep(0.01)
"""


def line_after(
    body: str,
    ranks: int,
    directory: pathlib.Path,
    killed: Sequence[int] = (),
    env: dict[str, str] | None = None,
) -> str:
    """Runs ``body`` on each rank with dumps, and returns the line that ``q7x2 blame`` prints."""
    dumps = directory / "dumps"
    environment = {"Q7X2_DUMP": str(dumps), **(env or {})}
    with harness.script(PREAMBLE + body, ranks, directory, environment) as processes:
        results = [process.result(60) for process in processes]
    text = "\n".join(result.describe() for result in results)
    for result in results:
        expected = -signal.SIGKILL if result.rank in killed else 0
        assert result.returncode == expected, text
    done = blame(dumps)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    assert done.stdout.count("\n") == 1, f"{done.stdout}\n{text}"
    return done.stdout


STOP = """
    if rank == 0:
        call(dist.all_reduce, torch.ones(1 << 22), async_op=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        await_dumps_of(3)
"""


def line_after_a_stop(body: str, directory: pathlib.Path) -> str:
    """The same for three ranks of which rank 0 stops. It goes on once the others have ended."""
    dumps = directory / "dumps"
    with harness.script(PREAMBLE + body, 3, directory, {"Q7X2_DUMP": str(dumps)}) as ranks:
        for rank in ranks[1:]:
            assert rank.result(60).returncode == 0, rank.stderr()
        ranks[0].signal(signal.SIGCONT)
        assert ranks[0].result(60).returncode == 0, ranks[0].stderr()
    return blame(dumps).stdout


def test_a_rank_that_was_killed(tmp_path: pathlib.Path) -> None:
    body = """
    if rank == 1:
        await_calls_of(0, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    call_and_say(dist.all_reduce, torch.ones(1000))
    """
    line = line_after(body, 3, tmp_path, killed=[1])
    assert "rank 1 (pid " in line
    assert " died: " in line
    assert "all_reduce of 4000 bytes of float32, sum" in line


def test_a_rank_that_never_came(tmp_path: pathlib.Path) -> None:
    body = """
    if rank == 2:
        await_dumps_of(3)
    else:
        call(dist.all_reduce, torch.ones(1000))
    """
    line = line_after(body, 3, tmp_path)
    assert "rank 2 (pid " in line
    assert "never came to all_reduce of 4000 bytes of float32, sum" in line
    assert re.search(r"ranks 0-1 waited [\d.]+ s", line), line
    assert re.search(r"its last call, barrier, was over [\d.]+ s", line), line


def test_a_rank_that_came_too_late(tmp_path: pathlib.Path) -> None:
    """Rank 1 comes before the deadline, but the data of rank 0 never does: rank 0 is stopped."""
    late = """
    if rank == 1:
        time.sleep(3)
    if rank != 0:
        call(dist.all_reduce, torch.ones(1 << 22))
    """
    line = line_after_a_stop(STOP + late, tmp_path)
    assert "rank 1 (pid " in line
    assert "was late: it came to all_reduce of 16777216 bytes of float32, sum" in line
    assert re.search(r"found rank 0 \(pid \d+ on [^)]*\) late: its process is stopped", line), line


def test_a_rank_that_is_stopped_in_the_middle(tmp_path: pathlib.Path) -> None:
    """All ranks came, so it is the way between two of them."""
    others = """
    if rank == 0:
        await_calls_of(1, 2)
    else:
        call_and_say(dist.all_reduce, torch.ones(1 << 22))
    """
    line = line_after_a_stop(others + STOP, tmp_path)
    assert "the link between rank 0 (pid " in line
    assert "is stuck: in all_reduce of 16777216 bytes of float32, sum" in line
    assert "to which all came" in line
    assert "over shared memory" in line
    assert re.search(r"found rank 0 \(pid \d+ on [^)]*\) late: its process is stopped", line), line


def test_ranks_that_call_different_things(tmp_path: pathlib.Path) -> None:
    body = """
    if rank == 1:
        await_calls_of(0, 2)
        call(dist.broadcast, torch.ones(50), 0)
    else:
        call_and_say(dist.all_reduce, torch.ones(1000))
    """
    line = line_after(body, 3, tmp_path)
    assert "ranks made different calls at sequence" in line
    assert "ranks 0, 2 called all_reduce of 4000 bytes of float32, sum" in line
    assert "rank 1 called broadcast of 200 bytes of float32, root 0" in line


def test_ranks_that_differ_in_the_dtype(tmp_path: pathlib.Path) -> None:
    body = """
    tensor = torch.ones(100, dtype=torch.int32 if rank == 0 else torch.float32)
    call(dist.broadcast, tensor, 0)
    call(dist.barrier)
    """
    line = line_after(body, 2, tmp_path)
    assert "rank 0 called broadcast of 400 bytes of int32, root 0" in line
    assert "rank 1 called broadcast of 400 bytes of float32, root 0" in line


def test_ranks_that_differ_in_what_no_size_shows(tmp_path: pathlib.Path) -> None:
    body = """
    import q7x2

    with q7x2.collectives.algorithm("ring" if rank == 0 else "sra"):
        call(dist.all_reduce, torch.ones(100))
    call(dist.barrier)
    """
    line = line_after(body, 2, tmp_path)
    assert "rank 0 and rank 1 disagree about all_reduce of 400 bytes of float32, sum" in line
    assert "its algorithm" in line


def test_a_message_that_was_never_sent(tmp_path: pathlib.Path) -> None:
    body = """
    if rank == 0:
        call(dist.recv, torch.ones(8), 1, tag=3)
    else:
        import q7x2

        await_dumps_of(1)
        q7x2.dump(str(dumps / "one.json"))
    """
    dumps = tmp_path / "dumps"
    line = line_after(body, 2, tmp_path)
    assert "rank 1 (pid " in line
    assert "never sent the message: rank 0 waits to receive a message (tag 3, 32 bytes)" in line
    assert len(list(dumps.glob("*.json"))) == 2


def test_nothing_is_wrong_but_one_is_slow(tmp_path: pathlib.Path) -> None:
    body = """
    import q7x2

    for _ in range(5):
        if rank == 1:
            time.sleep(0.2)
        dist.all_reduce(torch.ones(1000))
    q7x2.dump(os.environ["Q7X2_DUMP"] + f"/{rank}.json")
    dist.barrier()
    """
    line = line_after(body, 3, tmp_path)
    assert "Nothing failed and nothing is in progress." in line
    assert "rank 1 (pid " in line
    assert "came last most often" in line


def test_other_hosts_over_ucx(tmp_path: pathlib.Path) -> None:
    """Ranks that count as different hosts share no memory, and a death is still named."""
    body = """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    call(dist.all_reduce, torch.ones(1000))
    """
    per_rank = PREAMBLE.replace(
        "    dist.init", '    os.environ["Q7X2_HOST_ID"] = os.environ["RANK"]\n    dist.init'
    )
    dumps = tmp_path / "dumps"
    with harness.script(per_rank + body, 3, tmp_path, {"Q7X2_DUMP": str(dumps)}) as processes:
        processes[1].wait(60)  # UCX takes a zombie for alive
        results = [process.result(60) for process in processes]
    assert [r.returncode for r in results] == [0, -signal.SIGKILL, 0], results
    line = blame(dumps).stdout
    assert "rank 1 (pid " in line
    assert " died: " in line


@pytest.mark.skipif(lab.unavailable() is not None, reason=str(lab.unavailable()))
@pytest.mark.nightly("ten seconds of a core; test_blame_dumps has links that are stuck")
def test_a_cable_that_is_cut(tmp_path: pathlib.Path) -> None:
    body = """
    calls = 0
    try:
        while True:
            dist.all_reduce(torch.ones(1 << 18))
            calls += 1
            if calls == 10:
                print("ready", flush=True)
    except dist.DistBackendError as error:
        print(error, flush=True)
    """
    dumps = tmp_path / "dumps"
    ready = set()
    network = lab.Lab(lab.Topology(hosts=3, rate="1gbit"))

    def cut(rank: int, line: str) -> None:
        if line == "ready\n":
            ready.add(rank)
            if len(ready) == 3:
                namespaces.call("ip", "-n", f"{network.name}-switch", "link", "set", "h2", "down")

    with network:
        network.run(
            [sys.executable, "-c", textwrap.dedent(PREAMBLE + body)],
            env={"Q7X2_DUMP": str(dumps), "OMP_NUM_THREADS": "1"},
            on_line=cut,
        )
    line = blame(dumps).stdout
    assert "rank 2 (pid " in line
    assert " is stuck: " in line or " broke, and both sides live: " in line


def test_dumps_are_written_while_the_main_thread_holds_pythons_lock(
    tmp_path: pathlib.Path,
) -> None:
    body = """
    if rank == 0:
        call(dist.all_reduce, torch.ones(1000))
    else:
        import ctypes

        ctypes.PyDLL(None).sleep(1000)  # keeps the GIL until it is killed
    """
    dumps = tmp_path / "dumps"
    with harness.script(PREAMBLE + body, 2, tmp_path, {"Q7X2_DUMP": str(dumps)}) as ranks:
        assert ranks[0].result(60).returncode == 0, ranks[0].stderr()
        harness.wait_until(lambda: len(list(dumps.glob("*.json"))) == 2)
        assert ranks[1].poll() is None
    assert "rank 1 (pid " in blame(dumps).stdout
