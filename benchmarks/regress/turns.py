"""`python -m benchmarks turns OTHER`: rows of `bars` with two builds of q7x2, in turns.

OTHER is another checkout, set up and built there with `./dev build`: an older commit, say. Both
builds run the benchmarks of this checkout, so that only the engine differs. A row is slower if it
took longer in every turn of this build than in any turn of the other, and the medians differ by
more than a tolerance. The exit code is 1 if a row is slower.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import ROOT, facts, report
from benchmarks.harness.arguments import option, parser
from benchmarks.regress import bars
from benchmarks.regress.goals import BARS

_STYLES = {"slower": "red", "faster": "green"}


@dataclass(frozen=True)
class Pair:
    """One row at one size.

    Attributes:
        other, this: Seconds, a median for each turn of the build.
    """

    name: str
    size: int
    other: tuple[float, ...]
    this: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Above 1 this build is slower."""
        return median(self.this) / median(self.other)

    def verdict(self, tolerance: float) -> str:
        """`"slower"`, `"faster"` or `"same"`: never by turns that overlap."""
        if min(self.this) > max(self.other) and self.ratio > 1 + tolerance:
            return "slower"
        if max(self.this) < min(self.other) and 1 / self.ratio > 1 + tolerance:
            return "faster"
        return "same"


def main(argv: list[str]) -> None:
    options = {
        "only": option(None, "comma-separated names or patterns of rows", required=True),
        "turns": option(3, "of each build"),
        "blocks": option(5, "turns of each backend in a row"),
        "tolerance": option(0.05, "a loss that does not count (0.05)"),
        "out": option(None, "write all times to this file", type=Path),
    }
    command_line = parser("benchmarks turns", __doc__, options)
    command_line.add_argument("other", type=Path, help="a checkout that has been built")
    args = command_line.parse_args(argv)
    if args.turns < 1:
        raise ValueError(f"--turns must be at least 1, got {args.turns}")
    if not 0 <= args.tolerance < 1:
        raise ValueError(f"--tolerance must be at least 0 and less than 1, got {args.tolerance:g}")
    wanted = bars.names_like(args.only.split(","), [bar.name for bar in BARS])
    builds = {"other": python_of(args.other), "this": sys.executable}
    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    rows: dict[str, list[dict[str, Any]]] = {"other": [], "this": []}
    for turn in range(args.turns):
        for build in order(turn):
            with console.status(f"turn {turn + 1} of {args.turns}, {build} build"):
                rows[build] += measured(builds[build], wanted, args.blocks)
    found = list(pairs(rows["other"], rows["this"]))
    _print_missing(console, rows)
    if not found:
        raise ValueError("no row could be compared")
    console.print(table(found, args.tolerance))
    if args.out:
        figures = [
            {"name": each.name, "size": each.size, "other": each.other, "this": each.this}
            for each in found
        ]
        report.write_json(args.out, machine, {"rows": figures})
    slower = [each for each in found if each.verdict(args.tolerance) == "slower"]
    if slower:
        console.print(f"slower: {', '.join(dict.fromkeys(each.name for each in slower))}")
        raise SystemExit(1)


def python_of(checkout: Path) -> str:
    """The interpreter of a checkout, whose q7x2 is the one that was built there.

    Raises:
        ValueError: There is none, or its q7x2 lies elsewhere.
    """
    python = checkout.absolute() / ".venv" / "bin" / "python"
    if not python.exists():
        raise ValueError(f"{checkout} has no .venv: run ./dev build there first")
    where = "import importlib.util as u; print(u.find_spec('q7x2').origin)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, cwd="/")
    if found.returncode != 0:
        raise ValueError(f"{checkout} has no q7x2: run ./dev build there first")
    if not Path(found.stdout.strip()).resolve().is_relative_to(checkout.resolve()):
        raise ValueError(f"{python} would load {found.stdout.strip()}, which is not of {checkout}")
    return str(python)


def order(turn: int) -> tuple[str, str]:
    """Each build comes first in every second turn."""
    return ("this", "other") if turn % 2 else ("other", "this")


def measured(python: str, names: Sequence[str], blocks: int) -> list[dict[str, Any]]:
    """The rows of a run of `bars` with that interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bars.json"
        command = [python, "-m", "benchmarks", "bars", "--only", ",".join(names)]
        command += ["--blocks", str(blocks), "--out", str(out)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            problem = (ran.stderr or ran.stdout).strip().splitlines()
            raise ValueError(f"{python} -m benchmarks bars: {problem[-1] if problem else 'failed'}")
        rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
        return rows


def pairs(other: Sequence[dict[str, Any]], this: Sequence[dict[str, Any]]) -> Iterator[Pair]:
    """What both have measured."""
    times = [_times(rows) for rows in (other, this)]
    for key in times[0]:
        if key in times[1]:
            yield Pair(*key, tuple(times[0][key]), tuple(times[1][key]))


def _times(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[float]]:
    """By row and size, a time for each turn."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for size in row.get("sizes", ()):
            found.setdefault((row["bar"]["name"], size["size"]), []).append(size["time"])
    return found


def _print_missing(console: Console, rows: dict[str, list[dict[str, Any]]]) -> None:
    problems = {
        f"{row['bar']['name']}, {build} build: not measured: {row['not_measured']}"
        for build, every in rows.items()
        for row in every
        if "not_measured" in row
    }
    for problem in sorted(problems):
        console.print(problem, style="yellow", markup=False)


def table(found: Sequence[Pair], tolerance: float) -> Table:
    """One line per row and size; the times are those of the turns."""
    rows = []
    for each in found:
        verdict = each.verdict(tolerance)
        times = (_range(each.other), _range(each.this), f"{each.ratio:.2f}")
        cells = (each.name, report.size(each.size), *times, verdict)
        rows.append((cells, _STYLES.get(verdict)))
    head = ("figure", "size", "other", "this", "this / other", "")
    return report.table("Two builds in turns", head, rows)


def _range(times: Sequence[float]) -> str:
    low, middle, high = (report.duration(t) for t in (min(times), median(times), max(times)))
    return f"{middle} ({low} - {high})"
