"""``./dev test --repeat N``: how often each test fails: idle, with busy cores, on one core."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import commit, load, state, tied
from .paths import ROOT

FOLDER = ROOT / "build" / "repeat"

# Listed as a failed test if a run ended without a word about its tests.
NO_RESULT = "(the run itself)"


def run(arguments: argparse.Namespace) -> int:
    """Repeats until each condition has ``arguments.repeat`` runs; returns 1 if a test failed.

    Runs of the same tests at the same commit are remembered: a call goes on where an earlier one
    stopped. ``arguments.fresh`` forgets them.
    """
    known = state.load(FOLDER / "state.json")
    at = commit.describe()
    what = " ".join(_selection(arguments)) or "the quick run"
    if arguments.fresh:
        known.get(at, {}).pop(what, None)
    runs = known.setdefault(at, {}).setdefault(what, {})
    print(f"{what}, at {at}")
    for condition in arguments.conditions:
        done = runs.setdefault(condition, [])
        while len(done) < arguments.repeat:
            number = len(done) + 1
            with load.condition(condition):
                found = _run_once(arguments, FOLDER / at / f"{condition}-{number}.log")
            done.append(found)
            state.save(FOLDER / "state.json", known)
            print(_line(condition, number, arguments.repeat, found), flush=True)
    chosen = {name: runs[name] for name in arguments.conditions}
    print("\n".join(table(chosen)))
    return 1 if any(one["failed"] for done in chosen.values() for one in done) else 0


def _selection(arguments: argparse.Namespace) -> list[str]:
    """What decides which tests run, as arguments of ``./dev test``."""
    binary = ["--binary", arguments.binary] if arguments.binary else []
    behind = ["--", *arguments.pytest_args] if arguments.pytest_args else []
    return [*arguments.patterns, *binary, *behind]


def command(arguments: argparse.Namespace, seed: int) -> list[str]:
    """One run of the tests in a process of its own, which leaves ``last.json``."""
    options = ["--seed", str(seed), "--workers", str(arguments.workers)]
    return [sys.executable, "-m", "tests.runner", *options, *_selection(arguments)]


def _run_once(arguments: argparse.Namespace, log: Path) -> dict[str, Any]:
    """Keeps the output in ``log`` if a test failed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    results = FOLDER / "results"
    last = results / "last.json"
    last.unlink(missing_ok=True)
    given = arguments.seed
    seed = given if given is not None else random.SystemRandom().randrange(1, 1 << 31)
    began = time.monotonic()
    with (
        log.open("wb") as out,
        tied.session(
            command(arguments, seed),
            cwd=ROOT,
            env={**os.environ, "Q7X2_TEST_RESULTS": str(results)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        code = process.wait()
    told = json.loads(last.read_text()) if last.exists() else {}
    failed = sorted([*told.get("python", []), *told.get("cpp", [])])
    if not failed and code != 0:
        failed = [NO_RESULT]
    if not failed:
        log.unlink()
    return {
        "seed": seed,
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "log": str(log.relative_to(ROOT)) if failed else None,
    }


def _line(condition: str, number: int, count: int, found: Mapping[str, Any]) -> str:
    verdict = f"{len(found['failed'])} failed, see {found['log']}" if found["failed"] else "green"
    return f"{condition} {number} of {count}: {verdict} ({found['seconds']:.0f} s)"


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """``test: 3 of 20 busy, 0 of 10 idle`` for each test that failed, the most frequent first."""
    failures: dict[str, Counter[str]] = {}
    for condition, done in runs.items():
        for one in done:
            for test in one["failed"]:
                failures.setdefault(test, Counter())[condition] += 1
    by_rate = sorted(failures.items(), key=lambda item: (-item[1].total(), item[0]))
    lines = [
        f"{test}: " + ", ".join(f"{counts[c]} of {len(done)} {c}" for c, done in runs.items())
        for test, counts in by_rate
    ]
    green = [
        f"{sum(not one['failed'] for one in done)} of {len(done)} {condition}"
        for condition, done in runs.items()
    ]
    return [*lines, "green runs: " + ", ".join(green)]
