"""Collects what is known of a test that failed, and writes all of it to a file."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shlex
import shutil
import sys
import time

import explain
import leaks
import machine_load
import pytest
import seeds
from explain import Explanation, Section
from harness import ROOT, RankPool
from machine_load import CpuTimes
from rank_outcomes import Outcome
from rank_scripts import ScriptProcess, tail

_BEGUN = pytest.StashKey[tuple[float, CpuTimes]]()


def folder() -> pathlib.Path:
    """Where the results of this run go."""
    return ROOT / os.environ.get("Q7X2_TEST_RESULTS", "build/test")


def clear() -> None:
    """Remove what the last run wrote of its failures."""
    shutil.rmtree(folder() / "failures", ignore_errors=True)
    (folder() / "python-failures.txt").unlink(missing_ok=True)


def begin(item: pytest.Item) -> None:
    """A test begins: from here on its ranks and the load are noted."""
    RankPool.used.clear()
    ScriptProcess.used.clear()
    item.stash[_BEGUN] = time.monotonic(), CpuTimes.now()


def of_test(item: pytest.Item, when: str, text: str, crash: str) -> Explanation:
    """Explain a test, in the process in which it ran.

    Args:
        item: the test.
        when: the phase that failed.
        text: what pytest reports.
        crash: the error in one line.
    """
    started, cpu = item.stash.get(_BEGUN, (time.monotonic(), CpuTimes.now()))
    sections = [] if text.startswith("ranks [") else [_error(text, crash)]
    outcomes = _outcomes() if when != "setup" else []
    sections += explain.rank_sections(outcomes)
    known = {pool.pid(rank) for pool in RankPool.used for rank in range(pool.world_size)}
    known |= {process.pid for process in ScriptProcess.used}
    running = leaks.running(item.config, known)
    if running:
        sections.append(Section("still running", f"{len(running)} processes", [running]))
    took = time.monotonic() - started
    head = f"{when}, after {took:.1f} s; {machine_load.describe(cpu)}"
    explanation = Explanation(item.nodeid, head, _command(item.config, item.nodeid), sections)
    _save(explanation, text, outcomes)
    return explanation


def without_test(config: pytest.Config, nodeid: str, when: str, text: str) -> Explanation:
    """Explain what no worker has explained: an error of collection, or a worker that ended."""
    error = _error(text, explain.last_line(text))
    explanation = Explanation(nodeid, when, _command(config, nodeid), [error])
    _save(explanation, text, [])
    return explanation


def _error(text: str, crash: str) -> Section:
    return Section("error", crash, [tail(text, 40).splitlines()], keep_end=True)


def crash_line(report: pytest.TestReport) -> str:
    """The error of a report in one line, with its place."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return report.longreprtext.strip().partition("\n")[0]
    return f"{pathlib.PurePath(crash.path).name}:{crash.lineno} {crash.message.splitlines()[0]}"


def _outcomes() -> list[Outcome]:
    """The ranks of the last pool that the test used, or its scripts."""
    if RankPool.used:
        return RankPool.used[-1].account()
    return [_script_outcome(process) for process in ScriptProcess.used[-8:]]


def _script_outcome(process: ScriptProcess) -> Outcome:
    code = process.poll()
    errors = process.stderr()
    error = explain.last_line(errors) if "Traceback (most recent call last)" in errors else ""
    kind, _, text = error.partition(": ")
    return Outcome(
        rank=process.rank,
        kind="script still runs" if code is None else "script ended",
        exitcode=code,
        error=text,
        error_type=kind,
        trace=errors if error or "(most recent call first)" in errors else "",
        log=process.stdout() + errors,
    )


def _command(config: pytest.Config, nodeid: str) -> str:
    """Repeats one test with the seed of this run."""
    python = pathlib.Path(sys.executable)
    program = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    words = [str(program), "-m", "pytest"]
    for option, default in (("--backend", "q7x2"), ("--device", "fake")):
        value = config.getoption(option)
        words += [option, value] if value != default else []
    words += ["--nightly"] if config.getoption("--nightly") else []
    return f"{seeds.VARIABLE}={seeds.seed()} {shlex.join([*words, nodeid])}"


def file_of(test: str, suffix: str = "txt") -> pathlib.Path:
    """A file of a test. A name that would be too long ends in a checksum."""
    name = re.sub(r"[^\w.\[\]-]+", "-", test.removeprefix("tests/python/"))
    if len(name) > 120:
        name = f"{name[:110]}-{hashlib.sha1(test.encode()).hexdigest()[:8]}"
    (folder() / "failures").mkdir(parents=True, exist_ok=True)
    return folder() / "failures" / f"{name}.{suffix}"


def _save(explanation: Explanation, text: str, outcomes: list[Outcome]) -> None:
    path = file_of(explanation.test)
    explanation.path = _shown(path)
    whole = explain.whole_text(explanation)
    dumps = file_of(explanation.test, "dumps")
    for outcome in outcomes:
        if outcome.flight:
            dumps.mkdir(exist_ok=True)
            (dumps / f"q7x2-rank{outcome.rank}.json").write_text(outcome.flight)
    if dumps.exists():
        whole += f"\nwhole flight records: q7x2 blame {shlex.quote(_shown(dumps))}\n"
    with path.open("a") as file:
        file.write(f"{whole}\nwhat pytest reports:\n{text}\n\n")


def _shown(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
