"""Runs a list of GoogleTest cases in one process, and goes on behind one that ends the process."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from .binaries import Binary

RUN = re.compile(rb"^\[ RUN      \] (\S+)")
DONE = re.compile(rb"^\[ *(OK|FAILED|SKIPPED) *\] (\S+?)(?:, where .*)? \((\d+) ms\)")

KINDS = {b"OK": "passed", b"FAILED": "failed", b"SKIPPED": "skipped"}


@dataclasses.dataclass
class CppResult:
    """What became of the tests of a shard."""

    passed: list[str] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)  # test: its output
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, other: CppResult) -> None:
        self.passed += other.passed
        self.skipped += other.skipped
        self.failed.update(other.failed)
        self.seconds.update(other.seconds)

    def under(self, binary: str) -> CppResult:
        """The same, with the name of the binary before each test."""

        def name(test: str) -> str:
            return f"{binary}:{test}"

        return CppResult(
            [name(test) for test in self.passed],
            [name(test) for test in self.skipped],
            {name(test): text for test, text in self.failed.items()},
            {name(test): seconds for test, seconds in self.seconds.items()},
        )


def run_shard(
    binary: Binary, tests: list[str], folder: Path, number: int, stopped: threading.Event
) -> CppResult:
    """Runs ``tests``; a crash or a hang is the failure of the test that ran, and of no other.

    When ``stopped`` is set, the process ends, and the tests behind are left out.
    """
    result = CppResult()
    left = list(tests)
    while left and not stopped.is_set():
        process = _Process(binary, left, folder / f"{binary.name}-{number}.flags")
        process.follow(stopped)
        process.tell(result)
        told = {*result.passed, *result.skipped, *result.failed}
        rest = [test for test in left if test not in told]
        if len(rest) == len(left):  # it ended before its first test, or without a word
            for test in rest:
                result.failed[test] = process.output_tail()
            break
        left = rest
    return result


class _Process:
    def __init__(self, binary: Binary, tests: list[str], flags: Path) -> None:
        flags.write_text("--gtest_filter=" + ":".join(tests) + "\n")
        self._patience = binary.patience
        self._tests = set(tests)
        self._current: str | None = None
        self._lines: list[bytes] = []  # of the current test, and what came before the first one
        self._results: list[tuple[str, str, float, str]] = []
        self._since = time.monotonic()
        self._hung = False
        self._process = subprocess.Popen(
            [*binary.command(), f"--gtest_flagfile={flags}", "--gtest_color=no"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **binary.environment},
            start_new_session=True,  # ranks are its children: they end with it
        )

    def follow(self, stopped: threading.Event) -> None:
        """Reads its output until it ends."""
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, stopped), daemon=True)
        watch.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(line)
        code = self._process.wait()
        done.set()
        self._signal(signal.SIGKILL)  # ranks that a crash has left behind
        if self._current is not None:
            kind = "hung" if self._hung else f"ended the process: {_describe(code)}"
            seconds = time.monotonic() - self._since
            text = f"{kind}\n{self.output_tail()}"
            self._results.append((self._current, "failed", seconds, text))

    def _take(self, line: bytes) -> None:
        started, done = RUN.match(line), DONE.match(line)
        if started:
            self._current, self._lines = started[1].decode(), []
            self._since = time.monotonic()
        elif done and done[2].decode() == self._current:
            test, kind = done[2].decode(), KINDS[done[1]]
            text = self.output_tail() if kind == "failed" else ""
            self._results.append((test, kind, int(done[3]) / 1000, text))
            self._current, self._lines = None, []
        else:
            self._lines.append(line)

    def _watch(self, done: threading.Event, stopped: threading.Event) -> None:
        while not done.wait(1.0):
            if stopped.is_set():
                self._signal(signal.SIGKILL)
                return
            if time.monotonic() - self._since > self._patience:
                self._hung = True
                self._signal(signal.SIGABRT)
                if not done.wait(10.0):
                    self._signal(signal.SIGKILL)
                return

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def output_tail(self) -> str:
        return b"".join(self._lines[-80:]).decode(errors="replace")

    def tell(self, result: CppResult) -> None:
        for test, kind, seconds, text in self._results:
            result.seconds[test] = seconds
            if kind == "failed":
                result.failed[test] = text
            else:
                (result.passed if kind == "passed" else result.skipped).append(test)


def _describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
