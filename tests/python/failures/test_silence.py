"""Virtual hosts that fall silent, lose packets, or have a process that is killed or stopped.

Each test is one job of three hosts. When all ranks are ready, something happens to the last one.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import interpreters
import pytest

from tests import lab as lab_package
from tests.lab import Lab, Topology, namespaces
from tests.lab.processes import RankResult, RanksFailed

HOSTS = 3
VICTIM = HOSTS - 1

TRIED_BY_RELEASE = pytest.mark.nightly(
    "three processes import torch; test_release.py has this event in processes that are forked"
)

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
    dist.init_process_group("q7x2", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    last = rank == world - 1

    def reduce(size=1 << 16):
        tensor = torch.full((size,), float(rank + 1))
        dist.all_reduce(tensor)
        assert tensor.eq(world * (world + 1) / 2).all()

    def wait_for_flag():
        while not os.path.exists(os.environ["FLAG"]):
            time.sleep(0.05)

    def stop_until_flag():
        until = f'until [ -e "$FLAG" ]; do sleep 0.05; done; kill -CONT {os.getpid()}'
        subprocess.Popen(["sh", "-c", until])
        os.kill(os.getpid(), signal.SIGSTOP)

    for _ in range(3):
        reduce()
    dist.barrier()
    if "DEADLINE" in os.environ:
        dist.group.WORLD.set_timeout(timedelta(seconds=float(os.environ["DEADLINE"])))
    print("ready", flush=True)
    try:
        main()
    except RuntimeError as error:
        print("raised", str(error).replace("\\n", " "), flush=True)
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
    all_print: str = "",
    flag: pathlib.Path | None = None,
) -> list[RankResult]:
    """Runs `main` on each rank; `happens` when all are ready. Returns what they said.

    When all ranks but the victim have printed a line that begins with `all_print`, `flag` is
    touched, for which `main` may wait.
    """
    ready = threading.Semaphore(0)
    happened = threading.Event()
    printed: set[int] = set()

    def wait_and_act() -> None:
        for _ in range(HOSTS):
            if not ready.acquire(timeout=60):
                return
        happens()
        happened.set()

    def on_line(rank: int, line: str) -> None:
        if line == "ready\n":
            ready.release()
        if flag is not None and rank != VICTIM and line.startswith(all_print):
            printed.add(rank)
            if len(printed) == HOSTS - 1:
                flag.touch()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    head, tail = textwrap.dedent(PREAMBLE).split("for _ in range(3):")
    body = textwrap.indent(textwrap.dedent(main).strip(), "    ")
    script = f"{head}def main():\n{body}\n\nfor _ in range(3):{tail}"
    try:
        results = lab.run(
            # The shell stands between nsenter and the rank, else nsenter stops with it for good.
            ["sh", "-c", '"$@"; exit $?', "sh", interpreters.python(), "-c", script],
            env={
                "Q7X2_PROBE": "0",
                "OMP_NUM_THREADS": "1",
                **({"FLAG": str(flag)} if flag else {}),
                **(env or {}),
            },
            timeout_s=120,
            on_line=on_line,
        ).ranks
    except RanksFailed as failure:
        results = failure.results
    thread.join()
    assert happened.is_set(), "\n".join(result.output for result in results)
    return results


def raised(result: RankResult) -> str:
    """What a rank raised."""
    for line in result.lines:
        if line.startswith("raised "):
            return line.removeprefix("raised ")
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
        wait_for_flag()
    reduce()
"""


@TRIED_BY_RELEASE
@pytest.mark.parametrize("main", [REDUCE_FOR_EVER, WAIT_FOR_THE_LAST], ids=["busy", "waiting"])
def test_a_host_that_falls_silent_is_named(
    connected: Lab, tmp_path: pathlib.Path, main: str
) -> None:
    flag = tmp_path / "over"
    results = run(connected, main, lambda: cut(connected), all_print="raised ", flag=flag)
    for result in survivors(results):
        text = raised(result)
        assert f"rank {VICTIM}" in text
        assert "has not answered for" in text


def test_the_limit_is_the_users(connected: Lab) -> None:
    env = {"Q7X2_SILENCE": "4"}
    for result in survivors(run(connected, REDUCE_FOR_EVER, lambda: cut(connected), env)):
        text = raised(result)
        waited = re.search(r"has not answered for (\d+\.\d) s", text)
        assert waited is not None, text
        assert float(waited[1]) >= 4.0


REDUCE_UNTIL_FLAG = """
    done = torch.zeros(1)
    while done[0] == 0:
        reduce(1 << 18)
        done[0] = float(os.path.exists(os.environ["FLAG"]))
        dist.all_reduce(done, dist.ReduceOp.MAX)
"""


@TRIED_BY_RELEASE
def test_a_short_outage_is_survived(connected: Lab, tmp_path: pathlib.Path) -> None:
    flag = tmp_path / "over"

    def flap() -> None:
        cut(connected)
        time.sleep(1.0)
        mend(connected)
        flag.touch()

    env = {"Q7X2_SILENCE": "30", "FLAG": str(flag)}
    all_done(run(connected, REDUCE_UNTIL_FLAG, flap, env))


@TRIED_BY_RELEASE
@pytest.mark.skipif(
    shutil.which("nft") is None, reason="apt-get install nftables: it drops packets"
)
def test_lost_packets_are_survived(connected: Lab, tmp_path: pathlib.Path) -> None:
    flag = tmp_path / "over"

    def lose() -> None:
        on_switch(
            connected,
            "nft",
            "add table bridge loss; add chain bridge loss packets"
            " { type filter hook forward priority 0; };"
            " add rule bridge loss packets numgen random mod 100 < 5 counter drop",
        )
        time.sleep(2)
        flag.touch()

    all_done(run(connected, REDUCE_UNTIL_FLAG, lose, {"FLAG": str(flag)}))


@pytest.mark.parametrize(
    "forked",
    [
        pytest.param(False, marks=TRIED_BY_RELEASE, id="alone"),
        pytest.param(True, id="with a forked child"),
    ],
)
def test_a_process_that_is_killed_is_named_on_other_hosts(
    connected: Lab, tmp_path: pathlib.Path, forked: bool
) -> None:
    """A child of the process has copies of its sockets, which must not hide its end."""
    main = f"""
        if last:
            if {forked} and os.fork() == 0:
                wait_for_flag()
                os._exit(0)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        reduce()
    """
    env = {"Q7X2_SILENCE": "600"}
    results = run(connected, main, env=env, all_print="raised ", flag=tmp_path / "over")
    for result in survivors(results):
        assert f"rank {VICTIM}" in raised(result)


@TRIED_BY_RELEASE
def test_a_stopped_process_is_late_and_not_dead(connected: Lab, tmp_path: pathlib.Path) -> None:
    main = """
        if last:
            stop_until_flag()
        reduce()
    """
    warning = "q7x2: warning: all_reduce "
    env = {"Q7X2_SILENCE": "0.5", "DEADLINE": "12"}  # a warning comes after half of it
    results = run(connected, main, env=env, all_print=warning, flag=tmp_path / "warned")
    all_done(results)
    for result in survivors(results):
        warnings = [line for line in result.lines if line.startswith(warning)]
        assert warnings, result.output
        for line in warnings:
            assert f"rank {VICTIM} (" in line
            assert "is late: its host answers" in line


@TRIED_BY_RELEASE
def test_a_stopped_process_is_named_at_the_deadline(connected: Lab, tmp_path: pathlib.Path) -> None:
    main = """
        if last:
            stop_until_flag()
        reduce()
    """
    env = {"Q7X2_SILENCE": "0.5", "DEADLINE": "3"}
    results = run(connected, main, env=env, all_print="raised ", flag=tmp_path / "raised")
    for result in survivors(results):
        text = raised(result)
        assert "Timed out" in text
        assert f"rank {VICTIM} (" in text
        assert "is late: its host answers" in text
    assert "Timed out" in raised(results[VICTIM]), "it learns of it when it goes on"


def test_a_slow_rank_is_named_and_not_those_who_wait_for_it(
    connected: Lab, tmp_path: pathlib.Path
) -> None:
    """Rank 0 waits for rank 1 only, which waits for the last."""
    main = """
        if last:
            wait_for_flag()
        reduce(1)
    """
    env = {"DEADLINE": "3", "Q7X2_ALGO": "chain"}
    results = run(connected, main, env=env, all_print="raised ", flag=tmp_path / "raised")
    for result in survivors(results):
        text = raised(result)
        assert f"rank {VICTIM} (" in text
        assert "it has not made this call, its host answers" in text
        assert "rank 1 (pid" not in text


@pytest.mark.nightly("counts processor time, which needs a quiet machine")
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
    all_done(run(connected, main))
