"""Shards of GoogleTest: a test that crashes or hangs fails itself; those behind it still run."""

from __future__ import annotations

import sys
import textwrap
import threading
from pathlib import Path

import harness

from tests.runner import binaries, shard
from tests.runner.durations import balanced

# Speaks as GoogleTest does. What a test does is told by its name.
PROGRAM = """
    import os, sys, time
    flags = open(sys.argv[1].partition("=")[2]).read()
    for test in flags.strip().partition("=")[2].split(":"):
        print(f"[ RUN      ] {test}", flush=True)
        if test.endswith("Crash"):
            print("about to crash", flush=True)
            os.abort()
        if test.endswith("Hang"):
            if os.fork() == 0:  # a rank: it must not outlive the shard
                open(os.environ["RANK_FILE"], "w").write(str(os.getpid()))
            while True:
                time.sleep(10)
        if test.endswith("Fail"):
            print("expected 1, got 2")
            print(f"[  FAILED  ] {test}, where GetParam() = 3 (5 ms)", flush=True)
        elif test.endswith("Skip"):
            print(f"[  SKIPPED ] {test} (0 ms)", flush=True)
        else:
            print(f"[       OK ] {test} (1500 ms)", flush=True)
"""


class Program(binaries.Binary):
    """The program above in place of a compiled one."""

    def command(self) -> list[str]:
        return [sys.executable, self.folder]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but its parent."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def run(folder: Path, tests: list[str], patience: float = 60.0) -> shard.CppResult:
    return shard.run_shard(program_in(folder, patience), tests, folder, 0, threading.Event())


def program_in(folder: Path, patience: float = 60.0) -> Program:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {"RANK_FILE": str(folder / "rank")}
    return Program("cpp", "program", str(program), environment, patience=patience)


def test_results_and_seconds_of_every_test(tmp_path: Path) -> None:
    result = run(tmp_path, ["A.Good", "B/A.Case/Fail", "A.Skip"])
    assert result.passed == ["A.Good"]
    assert result.skipped == ["A.Skip"]
    assert list(result.failed) == ["B/A.Case/Fail"]
    assert "expected 1, got 2" in result.failed["B/A.Case/Fail"]
    assert result.seconds == {"A.Good": 1.5, "B/A.Case/Fail": 0.005, "A.Skip": 0.0}


def test_a_crash_is_the_failure_of_its_test_alone(tmp_path: Path) -> None:
    result = run(tmp_path, ["A.Good", "A.Crash", "A.Skip", "B.Crash", "B.Good"])
    assert result.passed == ["A.Good", "B.Good"]
    assert result.skipped == ["A.Skip"]
    assert list(result.failed) == ["A.Crash", "B.Crash"]
    assert "SIGABRT" in result.failed["A.Crash"]
    assert "about to crash" in result.failed["A.Crash"]


def test_a_hang_is_ended_with_its_ranks(tmp_path: Path) -> None:
    result = run(tmp_path, ["A.Hang", "A.Good"], patience=1.0)
    assert result.passed == ["A.Good"]
    assert list(result.failed) == ["A.Hang"]
    assert result.failed["A.Hang"].startswith("hung")
    harness.wait_until(lambda: has_ended(int((tmp_path / "rank").read_text())))


def test_a_shard_that_is_stopped_ends_with_its_ranks(tmp_path: Path) -> None:
    stopped = threading.Event()
    program = program_in(tmp_path)
    arguments = (program, ["A.Hang", "A.Good"], tmp_path, 0, stopped)
    thread = threading.Thread(target=shard.run_shard, args=arguments)
    thread.start()
    rank = tmp_path / "rank"
    harness.wait_until(lambda: rank.exists() and rank.read_text() != "")
    stopped.set()
    thread.join(60)
    assert not thread.is_alive()
    harness.wait_until(lambda: has_ended(int(rank.read_text())))


def test_a_program_that_does_not_start_fails_its_tests(tmp_path: Path) -> None:
    binary = Program("cpp", "program", str(tmp_path / "missing.py"))
    result = shard.run_shard(binary, ["A.Good", "A.Skip"], tmp_path, 0, threading.Event())
    assert list(result.failed) == ["A.Good", "A.Skip"]
    assert "missing.py" in result.failed["A.Good"]


def test_parts_take_about_as_long() -> None:
    seconds = {"long": 10.0, "middle": 6.0, "small": 4.0, "tiny": 1.0}
    parts = balanced([*seconds, "new"], seconds, 2)
    assert sorted(name for part in parts for name in part) == sorted([*seconds, "new"])
    assert {sum(seconds.get(name, 0) for name in part) for part in parts} == {10.0, 11.0}
    assert balanced([], seconds, 3) == []


class Lister(Program):
    """Says which filter it was given, as the name of a test."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import sys; print('Suite.'); print(' ' + sys.argv[2])"]


def test_the_quick_level_leaves_out_what_has_very_many_cases() -> None:
    binary = Lister("cpp", "program", only="A*")
    left_out = binaries.LEFT_OUT["cpp"]
    assert binary.tests(nightly=False) == [f"Suite.--gtest_filter=A*-{left_out}"]
    assert binary.tests(False, ["cpp:*"]) == binary.tests(False)
    assert binary.tests(nightly=True) == ["Suite.--gtest_filter=A*-"]
    assert binary.tests(False, ["cpp:Matrix.A", "lanes:B"]) == ["Suite.--gtest_filter=Matrix.A"]
