"""`python -m benchmarks --baseline`: has a figure become worse since an earlier result?

Rows of goals.py are measured again. Each is compared by its ratio to the backend that was measured
in turns with it, such as Gloo: times alone differ from machine to machine and from hour to hour.
The exit code is 1 if a row is worse.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import RESULTS, ROOT, facts, report
from benchmarks.harness.arguments import option, parser
from benchmarks.regress import bars
from benchmarks.regress.goals import BARS, SUBJECT
from benchmarks.regress.raw import raw_path

_DRAWS = 2000
_CONFIDENCE = 0.99  # so that few of many rows are called worse by chance
_FEWEST_BLOCKS = 3
_STYLES = {"worse": "red", "better": "green"}

_FILE = (
    "a file of `bars`, with its .raw.json.gz beside it; or a commit, whose "
    "benchmarks/results/bars.json counts (HEAD)"
)
_TOLERANCE = "a loss that does not count. Turns of one run differ less than two runs do (0.1)"
_OPTIONS = {
    "baseline": option("HEAD", _FILE, nargs="?", const="HEAD", metavar="FILE"),
    "only": option(None, "comma-separated names or patterns; all that have a peer"),
    "blocks": option(9, "turns of each backend"),
    "block_seconds": option(0.3, "length of a turn"),
    "tolerance": option(0.1, _TOLERANCE),
    "out": option(None, "write the new rows to this file", type=Path),
}


@dataclass(frozen=True)
class Change:
    """One row at one size.

    Attributes:
        before, now: How many times faster than the peer, the median of neighbouring turns.
        factor: `now` divided by `before`; below 1 it has become worse.
        interval: Of `factor`, 99 %, by a bootstrap of the turns of both runs.
    """

    name: str
    size: int
    peer: str
    before: float
    now: float
    interval: tuple[float, float]

    @property
    def factor(self) -> float:
        return self.now / self.before

    def verdict(self, tolerance: float) -> str:
        """`"worse"` if even the upper end of the interval lost more than `tolerance`."""
        low, high = self.interval
        if high < 1 - tolerance:
            return "worse"
        return "better" if low > 1 / (1 - tolerance) else "same"


def main(argv: list[str]) -> None:
    args = parser("benchmarks", __doc__, _OPTIONS).parse_args(argv)
    if not 0 <= args.tolerance < 1:
        raise ValueError(f"--tolerance must be at least 0 and less than 1, got {args.tolerance:g}")
    before, cells = read_baseline(args.baseline)
    chosen = [bar.name for bar in BARS if bar.against in _peers(cells.get(bar.name, ()))]
    if args.only:
        chosen = bars.names_like(args.only.split(","), chosen)
    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    load = machine["load_average"][0]
    if load > machine["cores"] / 2:
        console.print(f"the machine is busy (load {load:.1f}): rows may look worse", style="yellow")
    rows: list[dict[str, Any]] = []
    wanted = [bar for bar in BARS if bar.name in chosen]
    for row in bars.measured_rows(console, wanted, SUBJECT, args.blocks, args.block_seconds):
        rows.append(row)
        if args.out:
            bars.write_rows(args.out, machine, rows)
    found = [change for row in rows for change in changes(row, cells[row["bar"]["name"]])]
    if not found:
        raise ValueError("no row could be compared")
    measured = {row["bar"]["name"]: row.get("machine", before["machine"]) for row in before["rows"]}
    for other in {measured[each.name]["time"]: measured[each.name] for each in found}.values():
        console.print(f"before, {other['time']}: {facts.describe(other)}", markup=False)
    console.print(table(found, args.tolerance))
    worse = [each for each in found if each.verdict(args.tolerance) == "worse"]
    if worse:
        console.print(f"worse: {', '.join(dict.fromkeys(each.name for each in worse))}")
        raise SystemExit(1)


def read_baseline(text: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The figures and the cells of a file, or of the committed results of a commit.

    Raises:
        ValueError: There is no such file, and git knows no such commit.
    """
    path = Path(text)
    if path.is_file():
        if not raw_path(path).is_file():
            raise ValueError(f"{path} has no {raw_path(path).name} beside it")
        figures, raw = path.read_bytes(), raw_path(path).read_bytes()
    else:
        committed = RESULTS / "bars.json"
        figures, raw = _committed(text, committed), _committed(text, raw_path(committed))
    return json.loads(figures), json.loads(gzip.decompress(raw))


def _committed(ref: str, path: Path) -> bytes:
    name = f"{ref}:{path.relative_to(ROOT).as_posix()}"
    command = ["git", "-C", str(ROOT), "show", "--end-of-options", name]
    shown = subprocess.run(command, capture_output=True, check=False)
    if shown.returncode != 0:
        problem = shown.stderr.decode(errors="replace").strip()
        raise ValueError(f"--baseline {ref} is no file, and no commit with results: {problem}")
    return shown.stdout


def _peers(cells: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for cell in cells for name in cell["backends"]}


def changes(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    """What has changed since `before`, the cells of the same row. Nothing if there is no peer."""
    bar = row["bar"]
    subject, peer = bar["subject"] or SUBJECT, bar["against"]
    figures = {each["size"] for each in row.get("sizes", ())}
    for cell in row.get("cells", ()):
        if cell["op"] != bar["op"] or cell["size"] not in figures:
            continue
        for old in before:
            if (old["op"], old["size"]) == (cell["op"], cell["size"]):
                leads = [_leads(each, subject, peer) for each in (old, cell)]
                if min(map(len, leads)) >= _FEWEST_BLOCKS:
                    yield _change(bar["name"], cell["size"], peer, *leads)


def _leads(cell: Mapping[str, Any], subject: str, peer: str) -> np.ndarray:
    """By turn, the logarithm of how many times faster the subject was than the peer."""
    if subject not in cell["backends"] or peer not in cell["backends"]:
        return np.array([])
    ours, theirs = (np.log(cell["backends"][each]["block_medians"]) for each in (subject, peer))
    return np.asarray(theirs - ours)


def _change(name: str, size: int, peer: str, before: np.ndarray, now: np.ndarray) -> Change:
    random = np.random.default_rng(0)
    drawn = [
        np.median(random.choice(leads, (_DRAWS, len(leads))), axis=1) for leads in (now, before)
    ]
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.exp(np.quantile(drawn[0] - drawn[1], [tail, 1 - tail]))
    ratios = [float(np.exp(np.median(leads))) for leads in (before, now)]
    return Change(name, size, peer, ratios[0], ratios[1], (float(low), float(high)))


def table(found: Sequence[Change], tolerance: float) -> Table:
    """One line per row and size."""
    head = ("figure", "size", "peer", "before", "now", "now / before (99 %)", "")
    rows = []
    for each in found:
        verdict = each.verdict(tolerance)
        cells = (
            each.name,
            report.size(each.size),
            each.peer,
            f"{each.before:.2f}x",
            f"{each.now:.2f}x",
            f"{each.factor:.2f} ({each.interval[0]:.2f}-{each.interval[1]:.2f})",
            verdict,
        )
        rows.append((cells, _STYLES.get(verdict)))
    return report.table("Ratios to the peer, beside the baseline", head, rows)
