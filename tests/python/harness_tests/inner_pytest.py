"""Runs pytest on a file of ``samples``, whose tests fail on purpose."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import harness
import interpreters
import seeds

SAMPLES = pathlib.Path(__file__).resolve().parent / "samples"


@dataclasses.dataclass(frozen=True)
class InnerRun:
    lines: list[str]
    results: dict[str, Any]  # python.json
    folder: pathlib.Path

    def failed(self) -> set[str]:
        """The names of the tests that failed."""
        return {name.partition("::")[2] for name in self.results["failed"]}

    def end(self) -> str:
        """The last 200 lines of the output."""
        return "\n".join(self.lines[-200:])

    def of(self, test: str) -> str:
        """What the last 200 lines say about a test."""
        begin = self.end().index(f"::{test} (")
        return self.end()[begin:].split("\n== ")[0]


def run(
    file: str,
    folder: pathlib.Path,
    *arguments: str,
    seed: str | None = None,
    copies: bool = True,
) -> InnerRun:
    """Run the tests of a file of ``samples``; the results go to ``folder``.

    ``copies``: whether its processes may be copies of a process of this worker of pytest.
    """
    environment = {**os.environ, "Q7X2_TEST_RESULTS": str(folder)}
    environment.pop(seeds.VARIABLE)
    if seed is not None:
        environment[seeds.VARIABLE] = seed
    # A worker of pytest tells its children so.
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
    path = (SAMPLES / file).relative_to(harness.ROOT)
    environment |= interpreters.environment() if copies else {}
    python = interpreters.python() if copies else sys.executable
    command = [python, "-m", "pytest", str(path), *arguments]
    done = subprocess.run(
        command, cwd=harness.ROOT, env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    results = json.loads((folder / "python.json").read_text())
    return InnerRun(done.stdout.splitlines(), results, folder)
