"""Virtual hosts that fall silent, lose packets, or have a process that is killed or stopped.

Each test is one job of three hosts. When all ranks are ready, something happens to the last one.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks import lab as lab_package
from benchmarks.lab import Lab, Topology, namespaces
from benchmarks.processes import RankResult, RanksFailed

HOSTS = 3
VICTIM = HOSTS - 1
# What a loaded machine with two cores takes beyond what is promised.
SLACK = 2.0

pytestmark = pytest.mark.skipif(
    lab_package.unavailable() is not None, reason=str(lab_package.unavailable())
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(Topology(hosts=HOSTS, rate="1gbit")) as it:
        yield it


@pytest.fixture
def connected(lab: Lab) -> Iterator[Lab]:
    """The lab, whose faults are mended afterwards."""
    yield lab
    mend(lab)
    if shutil.which("nft"):
        on_switch(lab, "nft", "flush", "ruleset")


def on_switch(lab: Lab, *command: str) -> None:
    namespaces.call("ip", "netns", "exec", f"{lab.name}-switch", *command)


def cut(lab: Lab) -> None:
    on_switch(lab, "ip", "link", "set", f"h{VICTIM}", "down")


def mend(lab: Lab) -> None:
    on_switch(lab, "ip", "link", "set", f"h{VICTIM}", "up")


PREAMBLE = """
    import os, signal, subprocess, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    deadline = timedelta(seconds=float(os.environ.get("DEADLINE", "60")))
    dist.init_process_group("q7x2", timeout=deadline)
    rank, world = dist.get_rank(), dist.get_world_size()
    last = rank == world - 1

    def reduce(size=1 << 16):
        tensor = torch.full((size,), float(rank + 1))
        dist.all_reduce(tensor)
        assert tensor.eq(world * (world + 1) / 2).all()

    def stop_for(seconds):
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    for _ in range(3):
        reduce()
    dist.barrier()
    print("ready", flush=True)
    try:
        main()
    except RuntimeError as error:
        print("raised", time.monotonic(), str(error).replace("\\n", " "), flush=True)
    else:
        dist.barrier()
        dist.destroy_process_group()  # or the others may lack what was sent last
        print("done", flush=True)
    os._exit(0)
"""


def run(
    lab: Lab,
    main: str,
    happens: Callable[[], None] = lambda: None,
    env: dict[str, str] | None = None,
) -> tuple[list[RankResult], float]:
    """Runs `main` on each rank; `happens` when all are ready. Returns what they said and the time
    when it happened."""
    ready = threading.Semaphore(0)
    happened: list[float] = []

    def wait_and_act() -> None:
        for _ in range(HOSTS):
            if not ready.acquire(timeout=60):
                return
        time.sleep(0.5)
        happened.append(time.monotonic())
        happens()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    head, tail = textwrap.dedent(PREAMBLE).split("for _ in range(3):")
    body = textwrap.indent(textwrap.dedent(main).strip(), "    ")
    script = f"{head}def main():\n{body}\n\nfor _ in range(3):{tail}"
    try:
        results = lab.run(
            # The shell stands between nsenter and the rank, else nsenter stops with it for good.
            ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", script],
            env={"Q7X2_PROBE": "0", "OMP_NUM_THREADS": "1", **(env or {})},
            timeout_s=90,
            on_line=lambda _, line: ready.release() if line == "ready\n" else None,
        ).ranks
    except RanksFailed as failure:
        results = failure.results
    thread.join()
    assert happened, "\n".join(result.output for result in results)
    return results, happened[0]


def raised(result: RankResult) -> tuple[float, str]:
    """When a rank raised, and what."""
    for line in result.lines:
        if line.startswith("raised "):
            _, at, text = line.split(" ", 2)
            return float(at), text
    raise AssertionError(f"rank {result.rank} did not raise:\n{result.output}")


def survivors(results: list[RankResult]) -> list[RankResult]:
    return [result for result in results if result.rank != VICTIM]


def all_done(results: list[RankResult]) -> None:
    for result in results:
        assert result.returncode == 0, result.output
        assert result.lines[-1] == "done\n", result.output


REDUCE_FOR_EVER = """
    while True:
        reduce()
"""
WAIT_FOR_THE_LAST = """
    if last:
        time.sleep(20)
    reduce()
"""


@pytest.mark.parametrize("main", [REDUCE_FOR_EVER, WAIT_FOR_THE_LAST], ids=["busy", "waiting"])
def test_a_host_that_falls_silent_is_named(connected: Lab, main: str) -> None:
    results, cut_at = run(connected, main, lambda: cut(connected))
    for result in survivors(results):
        at, text = raised(result)
        assert at - cut_at < 2.0 + SLACK, text
        assert f"rank {VICTIM}" in text
        assert "has not answered for" in text


def test_the_limit_is_the_users(connected: Lab) -> None:
    results, cut_at = run(
        connected, REDUCE_FOR_EVER, lambda: cut(connected), env={"Q7X2_SILENCE": "6"}
    )
    for result in survivors(results):
        at, text = raised(result)
        assert 4.0 < at - cut_at < 6.0 + SLACK, text
        assert "has not answered for 6." in text


REDUCE_FOR_A_WHILE = """
    end = time.monotonic() + 6
    done = torch.zeros(1)
    while done[0] == 0:
        reduce(1 << 18)
        done[0] = float(time.monotonic() > end)
        dist.all_reduce(done, dist.ReduceOp.MAX)
"""


def test_a_short_outage_is_survived(connected: Lab) -> None:
    def flap() -> None:
        cut(connected)
        time.sleep(1.0)
        mend(connected)

    results, _ = run(connected, REDUCE_FOR_A_WHILE, flap, env={"Q7X2_SILENCE": "3"})
    all_done(results)


@pytest.mark.skipif(
    shutil.which("nft") is None, reason="apt-get install nftables: it drops packets"
)
def test_lost_packets_are_survived(connected: Lab) -> None:
    def lose() -> None:
        on_switch(
            connected,
            "nft",
            "add table bridge loss; add chain bridge loss packets"
            " { type filter hook forward priority 0; };"
            " add rule bridge loss packets numgen random mod 100 < 5 counter drop",
        )

    results, _ = run(connected, REDUCE_FOR_A_WHILE, lose)
    all_done(results)


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked child"])
def test_a_process_that_is_killed_is_named_on_other_hosts(connected: Lab, forked: bool) -> None:
    """A child of the process has copies of its sockets, which must not hide its end."""
    main = f"""
        if last:
            if {forked} and os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            time.sleep(2)
            print("killed", time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        reduce()
    """
    results, _ = run(connected, main, env={"Q7X2_SILENCE": "30"})
    killed = next(line for line in results[VICTIM].lines if line.startswith("killed "))
    for result in survivors(results):
        at, text = raised(result)
        assert at - float(killed.split()[1]) < 0.3 + SLACK, text
        assert f"rank {VICTIM}" in text


def test_a_stopped_process_is_late_and_not_dead(connected: Lab) -> None:
    main = """
        if last:
            stop_for(5)
        reduce()
    """
    results, _ = run(connected, main, env={"Q7X2_SILENCE": "0.5", "DEADLINE": "8"})
    all_done(results)
    lines = [line for result in survivors(results) for line in result.lines]
    # Ranks of a busy machine may also be late in making the group.
    warnings = [line for line in lines if line.startswith("q7x2: warning: all_reduce ")]
    assert warnings, lines
    for line in warnings:
        assert f"rank {VICTIM} (" in line
        assert "is late: its host answers" in line


def test_a_stopped_process_is_named_at_the_deadline(connected: Lab) -> None:
    main = """
        start = time.monotonic()
        if last:
            stop_for(6)
        try:
            reduce()
        finally:
            print("took", time.monotonic() - start, flush=True)
    """
    results, _ = run(connected, main, env={"Q7X2_SILENCE": "0.5", "DEADLINE": "3"})
    for result in survivors(results):
        _, text = raised(result)
        took = float(next(line for line in result.lines if line.startswith("took ")).split()[1])
        assert 2.9 < took < 3.1 + SLACK
        assert "Timed out" in text
        assert f"rank {VICTIM} (" in text
        assert "is late: its host answers" in text
    _, text = raised(results[VICTIM])
    assert "Timed out" in text, "it learns of it when it goes on"


def test_a_slow_rank_is_named_and_not_those_who_wait_for_it(connected: Lab) -> None:
    """Rank 0 waits for rank 1 only, which waits for the last."""
    main = """
        if last:
            time.sleep(4)
        reduce(1)
    """
    results, _ = run(connected, main, env={"DEADLINE": "2", "Q7X2_ALGO": "chain"})
    for result in survivors(results):
        _, text = raised(result)
        assert f"rank {VICTIM} (" in text
        assert "it has not made this call, its host answers" in text
        assert "rank 1 (pid" not in text


def test_an_idle_job_takes_no_time(connected: Lab) -> None:
    main = """
        import resource
        reduce()
        dist.barrier()
        time.sleep(0.3)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = sum(after[:2]) - sum(before[:2])
        assert used < 0.01 * 3, used
    """
    results, _ = run(connected, main)
    all_done(results)
