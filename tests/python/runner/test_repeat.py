"""``./dev test --repeat``: rates per condition, kept outputs, and runs that go on later."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from harness import wait_until

from tests.runner import load, repeat

# A run of the tests that leaves what `./dev test` would: every second run fails.
FAKE = """
import json, os, pathlib
results = pathlib.Path(os.environ["Q7X2_TEST_RESULTS"])
results.mkdir(parents=True, exist_ok=True)
count = results / "count"
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
failed = ["test_odd"] if number % 2 else []
(results / "last.json").write_text(json.dumps({"python": failed, "cpp": []}))
print("output of run", number, "on cores", sorted(os.sched_getaffinity(0)))
raise SystemExit(bool(failed))
"""


def arguments(**given: Any) -> argparse.Namespace:
    defaults = {
        "patterns": ["test_odd"],
        "repeat": 2,
        "conditions": ["idle"],
        "seed": None,
        "workers": 1,
        "binary": None,
        "pytest_args": [],
        "fresh": False,
    }
    return argparse.Namespace(**{**defaults, **given})


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """Runs write here, at a commit of the test's own."""
    monkeypatch.setattr(repeat, "FOLDER", tmp_path)
    monkeypatch.setattr(repeat, "ROOT", tmp_path)
    monkeypatch.setattr(repeat.commit, "describe", lambda: "abc")
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> Callable[[str], None]:
    """Replaces the tests by a program."""

    def use(program: str) -> None:
        command = [sys.executable, "-c", program]
        monkeypatch.setattr(repeat, "command", lambda arguments, seed: command)

    return use


def test_the_rate_of_each_failure_is_printed(
    fake: Callable[[str], None], folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(FAKE)
    assert repeat.run(arguments(repeat=2, conditions=["idle", "one"])) == 1
    output = capsys.readouterr().out
    assert "test_odd: 1 of 2 idle, 1 of 2 one" in output
    assert "green runs: 1 of 2 idle, 1 of 2 one" in output
    # The output of the runs that failed is kept, and of no other.
    logs = sorted(path.name for path in (folder / "abc").iterdir())
    assert logs == ["idle-2.log", "one-2.log"]
    assert f"cores [{min(os.sched_getaffinity(0))}]" in (folder / "abc" / "one-2.log").read_text()


def test_a_call_goes_on_where_an_earlier_one_stopped(
    fake: Callable[[str], None], folder: pathlib.Path
) -> None:
    fake(FAKE)
    repeat.run(arguments(repeat=1))
    repeat.run(arguments(repeat=3))
    assert (folder / "results" / "count").read_text() == "3"
    repeat.run(arguments(repeat=3, patterns=["another"]))
    assert (folder / "results" / "count").read_text() == "6"
    repeat.run(arguments(repeat=1, fresh=True))
    assert (folder / "results" / "count").read_text() == "7"
    assert len(json.loads((folder / "state.json").read_text())["abc"]["test_odd"]["idle"]) == 1


def test_a_run_that_leaves_no_results_has_failed(
    fake: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fake("raise SystemExit(3)")
    assert repeat.run(arguments(repeat=1)) == 1
    assert f"{repeat.NO_RESULT}: 1 of 1 idle" in capsys.readouterr().out


def test_green_runs_pass(fake: Callable[[str], None]) -> None:
    fake("")
    assert repeat.run(arguments(repeat=2)) == 0


def test_a_seed_goes_to_every_run() -> None:
    words = repeat.command(arguments(pytest_args=["-x"]), seed=7)
    assert words[words.index("--seed") + 1] == "7"
    assert words[-3:] == ["test_odd", "--", "-x"]


def test_cores_are_busy_until_the_block_ends() -> None:
    with load.condition("busy"):
        wait_until(lambda: len(busy_loops()) == len(os.sched_getaffinity(0)))
        loops = busy_loops()
        wait_until(lambda: all(ticks(pid) > 0 for pid in loops))
    assert busy_loops() == []


def test_busy_loops_end_with_a_parent_that_is_killed() -> None:
    program = """
        import os, time
        from tests.runner import load
        with load.busy_cores():
            print(*open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
            time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=repeat.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    loops = [int(word) for word in parent.stdout.readline().split()]
    assert loops
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(runs(pid) for pid in loops))


def busy_loops() -> list[int]:
    """Those that this process has started."""
    text = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(word) for word in text.split() if "prctl" in command_line(int(word))]


def command_line(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def ticks(pid: int) -> int:
    """Clock ticks that a process has computed."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().split()[13])


def runs(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
