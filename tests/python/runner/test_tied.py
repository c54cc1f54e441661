"""The runner takes what it has started with it, however it ends."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness import ROOT, wait_until
from process_state import state_of

CHILD = """
import os, subprocess, time
grandchild = subprocess.Popen(["sleep", "600"])
print(os.getpid(), grandchild.pid, flush=True)
{then}
"""

RUNNER = """
import sys
from tests.runner import tied
tied.end_on_sigterm()
with tied.session([sys.executable, "-c", {child!r}]) as process:
    {then}
"""


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", request.param]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def runners(child: str, then: str) -> pytest.MarkDecorator:
    program = RUNNER.format(child=CHILD.format(then=child), then=then)
    return pytest.mark.parametrize("runner", [program], indirect=True, ids=[then[:12]])


def children_of(runner: subprocess.Popen[str]) -> list[int]:
    assert runner.stdout is not None
    return list(map(int, runner.stdout.readline().split()))


def have_ended(pids: list[int]) -> bool:
    return all(state_of(pid) in "XZ" for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@runners("time.sleep(600)", "process.wait()")
def test_a_signal(runner: subprocess.Popen[str], number: int) -> None:
    pids = children_of(runner)
    runner.send_signal(number)
    assert runner.wait(60) != 0
    wait_until(lambda: have_ended(pids))


@runners("", "sys.exit(process.wait())")
def test_the_end(runner: subprocess.Popen[str]) -> None:
    pids = children_of(runner)
    assert runner.wait(60) == 0
    wait_until(lambda: have_ended(pids))


@runners(
    "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('here', flush=True)",
    "process.wait()",
)
def test_what_is_interrupted_says_where_it_was(runner: subprocess.Popen[str]) -> None:
    children_of(runner)
    os.kill(runner.pid, signal.SIGINT)
    assert runner.stdout is not None
    assert "here" in runner.stdout.read()
    assert not pathlib.Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().strip()
