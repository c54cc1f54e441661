"""``./dev test --nightly [--part K/N] [STEP...]``: runs steps, and writes docs/nightly.md."""

from __future__ import annotations

import argparse
import datetime
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import commit, figures, page, state, tied
from .binaries import WHOLE
from .durations import balanced
from .paths import ROOT
from .steps import Step, steps

FOLDER = ROOT / "build" / "nightly"
PAGE = ROOT / "docs" / "nightly.md"
HOUR = 60.0  # the most minutes of a part

# A step that takes longer than this many times its expected minutes hangs.
PATIENCE = 4.0
LEAST_PATIENCE = 20.0  # minutes


class UnknownStep(ValueError):
    """A pattern that names no step."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the steps of ``arguments.part`` whose names contain one of ``arguments.patterns``.

    A step that was run at this commit is not run again, unless ``arguments.fresh``. Returns 1 if
    one of the chosen steps has failed at this commit, and 2 for a pattern that names no step.
    """
    known = steps()
    expected = expected_minutes(known)
    try:
        chosen = choose(known, arguments.patterns)
    except UnknownStep as error:
        print(f"dev: {error}", file=sys.stderr)
        return 2
    if arguments.part:
        chosen = of_part(chosen, expected, *arguments.part)
    at = commit.describe()
    run_at = state.load(FOLDER / "state.json")
    if arguments.fresh:
        for step in chosen:
            run_at.get(step.name, {}).pop(at, None)
    total = sum(expected[step.name] for step in chosen)
    print(f"{len(chosen)} steps at {at}, about {total:.0f} minutes: {_names(chosen)}")
    failed = []
    for number, step in enumerate(chosen, 1):
        results = run_at.setdefault(step.name, {})
        if results.get(at, {}).get("result") not in ("ok", "failed"):
            print(f"==> {number} of {len(chosen)}: {step.name}", flush=True)
            results[at] = run_step(step, expected[step.name], at)
            state.save(FOLDER / "state.json", run_at)
            write_page(known, run_at, at)
        found = results[at]
        print(f"{step.name}: {found['result']}. {found['figures']} ({found['seconds']:.0f} s)")
        if found["result"] == "failed":
            failed.append(step.name)
    write_page(known, run_at, at)
    if failed:
        print(f"failed: {', '.join(failed)}; the output is in {FOLDER.relative_to(ROOT)}")
    return 1 if failed else 0


def choose(known: Sequence[Step], patterns: Sequence[str]) -> list[Step]:
    """Steps whose name contains a pattern, all without one; raises ``UnknownStep``."""
    names = [step.name for step in known]
    for pattern in patterns:
        if not any(pattern in name for name in names):
            near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or names
            raise UnknownStep(f"no step has '{pattern}' in its name; nearest: {', '.join(near)}")
    return [s for s in known if not patterns or any(pattern in s.name for pattern in patterns)]


def of_part(
    chosen: Sequence[Step], expected: Mapping[str, float], part: int, parts: int
) -> list[Step]:
    """The steps of the ``part``-th of ``parts`` lists that take about as long, from 1 on."""
    divided = balanced([step.name for step in chosen], expected, parts)
    names = set(divided[part - 1]) if part <= len(divided) else set()
    return [step for step in chosen if step.name in names]


def fewest_parts(expected: Mapping[str, float]) -> int:
    """Into how many parts the run is divided so that each takes less than an hour."""
    for parts in range(1, len(expected)):
        divided = balanced(list(expected), expected, parts)
        if all(sum(expected[name] for name in part) < HOUR for part in divided):
            return parts
    return max(1, len(expected))


def expected_minutes(known: Sequence[Step]) -> dict[str, float]:
    """Those of the committed page, so that parts stay the same while a run goes on."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:{PAGE.relative_to(ROOT)}"], cwd=ROOT, capture_output=True, text=True
    )
    rows = page.rows_of(shown.stdout)
    return {
        step.name: rows[step.name].minutes if _has_minutes(rows.get(step.name)) else step.minutes
        for step in known
    }


def _has_minutes(row: page.Row | None) -> bool:
    return row is not None and row.result == "ok" and row.minutes > 0


def run_step(step: Step, expected: float, at: str) -> dict[str, object]:
    """Its result. The output goes to a file, and the end of it to the terminal if it failed."""
    began = time.monotonic()
    log = FOLDER / at / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    patience = 60 * max(LEAST_PATIENCE, PATIENCE * expected)
    reason = step.missing()
    if not reason and step.prepare and _run(step.prepare, log, patience) != 0:
        reason = f"could not be prepared: {_last_line(log)}"
    if reason:
        result, told = "skipped", reason
    else:
        code = _run(step.command, log, patience)
        result = "ok" if code == 0 else "failed"
        output = log.read_text(errors="replace")
        told = figures.find(output)
        if code is None:
            told = f"ended after {patience / 60:.0f} minutes. {told}"
        if code != 0:
            print("\n".join(output.splitlines()[-100:]))
    return {
        "result": result,
        "figures": told,
        "seconds": round(time.monotonic() - began, 1),
        "date": datetime.date.today().isoformat(),
        "log": str(log),
    }


def _run(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """Returns the exit code, or None if the time was over."""
    with (
        log.open("wb") as out,
        tied.session(
            command,
            cwd=ROOT,
            env={**os.environ, **WHOLE, "Q7X2_TEST_RESULTS": str(FOLDER / "results")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def write_page(known: Sequence[Step], run_at: Mapping[str, Mapping[str, object]], at: str) -> None:
    """A step without a result at this commit shows its last one, or that of the old page."""
    rows = page.read(PAGE)
    for step in known:
        results = run_at.get(step.name, {})
        if results:
            latest = at if at in results else list(results)[-1]
            rows[step.name] = _row(latest, results[latest])  # type: ignore[arg-type]
    date = datetime.date.today().isoformat()
    names = [step.name for step in known]
    page.write(PAGE, names, rows, at, date, fewest_parts(expected_minutes(known)))


def _row(at: str, found: Mapping[str, object]) -> page.Row:
    minutes = float(str(found["seconds"])) / 60
    told = page.plain(str(found["figures"]))
    return page.Row(str(found["result"]), str(found["date"]), at, minutes, told)


def _names(chosen: Sequence[Step]) -> str:
    return ", ".join(step.name for step in chosen)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no output"
