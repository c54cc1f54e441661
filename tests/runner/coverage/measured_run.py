"""Runs the tests of both languages with counters."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..binaries import Binary
from ..paths import ROOT
from ..shard import CppResult, run_shard
from .build import FOLDER, environment

SHARDS = 8  # of the C++ tests: a few more than cores, as they take different times


@dataclasses.dataclass(frozen=True)
class CountingTests(Binary):
    """The C++ tests of the build with counters."""

    @property
    def path(self) -> Path:
        return FOLDER / self.target


def run_cpp(only: str, nightly: bool, data: Path, workers: int) -> CppResult:
    """GoogleTest's cases that match the filter ``only``."""
    preload = environment(data)["LD_PRELOAD"]
    binary = CountingTests(
        "cpp",
        "q7x2_tests",
        environment={"UCX_MEM_EVENTS": "n", "LD_PRELOAD": preload},
        only=only,
        patience=600.0,
    )
    tests = binary.tests(nightly)
    parts = [part for part in (tests[start::SHARDS] for start in range(SHARDS)) if part]
    result = CppResult()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = [
            pool.submit(run_shard, binary, part, data, number) for number, part in enumerate(parts)
        ]
        for shard in running:
            result.add(shard.result())
    return result


def run_python(
    arguments: Sequence[str], data: Path, workers: int, tests_of: Path | None = None
) -> int:
    """pytest, in ``tests_of`` or this checkout; returns its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    if workers > 1:
        command += ["-n", str(workers), "--dist", "loadfile"]
    # Everything is slower here, and ranks wait for each other.
    command += ["--timeout", "900", *arguments]
    home = os.fspath(tests_of or ROOT)
    return subprocess.run(command, cwd=home, env=environment(data)).returncode
