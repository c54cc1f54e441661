"""`python -m tests.faults`: the times of release of the failure contract, event by cell.

`python -m tests.faults rejoin` and `strangers` run a study instead.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import RESULTS, facts, report, study
from tests.faults import STUDIES, table, trial
from tests.faults.contract import CELLS, EVENTS, NEXT_CALL_S, Cell, Event, pairs
from tests.faults.site import Site
from tests.faults.verdict import Verdict
from tests.lab import command
from tests.lab import unavailable as lab_unavailable

_SHOWN_PROBLEMS = 3


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only",
        help="EVENT/CELL patterns between semicolons, such as 'killed/*; */ring, one host'; other "
        f"rows of --out stay as they are. Events: {', '.join(e.name for e in EVENTS)}. "
        f"Cells: {'; '.join(c.name for c in CELLS)}",
    )
    parser.add_argument("--trials", type=int, default=20, help="of each event in each cell")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    args = parser.parse_args(argv)
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed

    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    console.print(f"seed {seed}")
    chosen = _chosen(args.only)
    rows: list[dict[str, Any]] = []
    for hosts in (1, 2):
        mine = [(event, cell) for event, cell in chosen if cell.hosts == hosts]
        if hosts > 1 and mine and (problem := lab_unavailable()):
            console.print(f"[yellow]not measured between virtual hosts: {problem}[/yellow]")
            continue
        for event, cell, verdicts in measure(mine, args.trials, seed):
            new = _rows(event, cell, verdicts, seed)
            rows += [{**row, "machine": machine} for row in new]
            _show(console, new, [p for verdict in verdicts for p in verdict.problems])
            # After each row: a run that is stopped keeps what it has measured.
            _write(args.out, machine, rows)
    console.print(f"written: {args.out}, {args.out.with_suffix('.md')}")


def measure(
    chosen: list[tuple[Event, Cell]], trials: int, seed: int
) -> Iterator[tuple[Event, Cell, list[Verdict]]]:
    """Runs the trials of pairs that have the same number of hosts."""
    if not chosen:
        return
    with _site(chosen[0][1]) as site:
        for event, cell in chosen:
            verdicts = [
                trial.run(site, cell, event, random.Random(f"{seed}/{event.name}/{cell.name}/{i}"))
                for i in range(trials)
            ]
            yield event, cell, verdicts


@contextmanager
def _site(cell: Cell) -> Iterator[Site]:
    with Site(cell.hosts, cell.ranks_per_host) as site:
        site.join(timeout=30)  # the first group of a process loads UCX
        site.leave()
        yield site


def _chosen(only: str | None) -> list[tuple[Event, Cell]]:
    every = pairs()
    if only is None:
        return every
    chosen = []
    for pattern in (each.strip() for each in only.split(";")):
        matched = [
            (event, cell)
            for event, cell in every
            if fnmatchcase(f"{event.name}/{cell.name}", pattern)
        ]
        if not matched:
            raise ValueError(f"no event and cell fit {pattern!r}; see --help")
        chosen += [pair for pair in matched if pair not in chosen]
    return chosen


def _rows(event: Event, cell: Cell, verdicts: list[Verdict], seed: int) -> list[dict[str, Any]]:
    """One row, or two if survivors of the victim's host and of others have limits of their own."""
    places = sorted({where for verdict in verdicts for where in verdict.seconds})
    apart = ["same host", "another host"][: cell.hosts] if event.measure == "release" else [""]
    for verdict in verdicts:
        if verdict.next_call > NEXT_CALL_S:
            verdict.complain(f"a next call took {verdict.next_call * 1e3:.0f} ms to raise")
    problems = [
        f"trial {i}: {_brief(p)}" for i, verdict in enumerate(verdicts) for p in verdict.problems
    ]
    return [
        {
            "event": event.name,
            "cell": cell.name,
            "hosts": cell.hosts,
            "where": where,
            "limit": event.limit(where or ("same host" if cell.hosts == 1 else "another host")),
            "trials": len(verdicts),
            "bad_trials": sum(bool(verdict.problems) for verdict in verdicts),
            "seconds": [v.seconds[where] for v in verdicts if where in v.seconds],
            "problems": problems,
            "seed": seed,
        }
        for where in (places or apart)
    ]


def _brief(problem: str) -> str:
    """Without the stack of a rank that hangs or the output of one that ended."""
    lines = problem.strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def _write(out: Path, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The new rows, and those that the file has beside them."""
    every = {}
    if out.exists():
        every = {_key(row): row for row in json.loads(out.read_text())["rows"]}
    new = {(row["event"], row["cell"]) for row in rows}
    every = {key: row for key, row in every.items() if key[:2] not in new}
    every |= {_key(row): row for row in rows}
    ordered = sorted(every.values(), key=table.order)
    report.write_json(out, machine, {"rows": ordered})
    out.with_suffix(".md").write_text(table.page(ordered))


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["event"], row["cell"], row["where"]


def _show(console: Console, rows: list[dict[str, Any]], problems: list[str]) -> None:
    for row in rows:
        colour = "green" if table.is_met(row) else "red"
        console.print(f"[{colour}]{' | '.join(table.line(row))}[/{colour}]", soft_wrap=True)
    for problem in problems[:_SHOWN_PROBLEMS]:
        console.print(f"    {problem}", style="dim", markup=False, soft_wrap=True)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    if name in STUDIES:
        module = importlib.import_module(f"tests.faults.{name}")
        sys.exit(command.run(partial(study.main, module), arguments))
    sys.exit(command.run(main, sys.argv[1:]))
