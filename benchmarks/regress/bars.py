"""`python -m benchmarks bars`: the figures q7x2 must reach (goals.py), measured by one command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from q7x2._core.units import parse_size
from rich.console import Console

from benchmarks.harness import (
    RESULTS,
    facts,
    launch,
    openmpi,
    plots,
    report,
    startup,
    summary,
)
from benchmarks.harness.arguments import option, parser
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.ops import OPS
from benchmarks.regress.goals import (
    BARS,
    BEST_FIXED,
    BLOCK_ORDER,
    FIXED,
    IPERF,
    LINE_RATE,
    SUBJECT,
    Bar,
)
from benchmarks.regress.raw import raw_path, read_raw, write_raw
from tests.lab import LabError, Topology, iperf
from tests.lab import unavailable as lab_unavailable
from tests.lab.processes import RanksFailed
from tests.lab.topology import bits_per_second

_VERDICTS = {True: "yes", False: "no", report.UNDECIDED: report.UNDECIDED}
_STYLES: dict[bool | str | None, str] = {True: "green", False: "red", report.UNDECIDED: "yellow"}


def main(argv: list[str]) -> None:
    names = [bar.name for bar in BARS]
    only = (
        "comma-separated names or patterns such as 'network-2-*'; other rows of --out stay as they "
        f"are. The names: {', '.join(names)}"
    )
    options = {
        "only": option(None, only),
        "subject": option(SUBJECT, "the backend under test"),
        "blocks": option(9, "turns of each backend"),
        "block_seconds": option(0.3, "length of a turn"),
        "out": option(RESULTS / "bars.json", type=Path),
    }
    args = parser("benchmarks bars", __doc__, options).parse_args(argv)
    wanted = names_like(args.only.split(","), names) if args.only else names

    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    rows = []
    bars = [bar for bar in BARS if bar.name in wanted]
    for row in measured_rows(console, bars, args.subject, args.blocks, args.block_seconds):
        rows.append(row)
        # After each row: a run that is stopped keeps what it has measured.
        write_rows(args.out, machine, rows)
    styled = ((_columns(row), _STYLES.get(row.get("reached"))) for row in rows)
    console.print(report.table("Figures to reach", _HEADER, styled))
    rows = _with_others(rows, machine, args.out)
    markdown = args.out.with_suffix(".md")
    markdown.write_text(_markdown(rows))
    picture = args.out.with_suffix(".png")
    plots.draw_goals(rows, picture)
    console.print(f"written: {args.out}, {raw_path(args.out)}, {markdown}, {picture}")


def measured_rows(
    console: Console, bars: list[Bar], subject: str, blocks: int, block_seconds: float
) -> Iterator[dict[str, Any]]:
    """The rows of `bars` with their `cells`; a row that cannot be measured says why."""
    runs: dict[launch.Job, list[dict[str, Any]]] = {}
    bounds = measured_bounds(console, bars)
    for bar in bars:
        bound = bounds.get(bar.topology)
        problem = _unavailable(bar)
        if bar.against == IPERF and bound is None:
            problem = problem or "iperf3 gave no rates"
        if problem:
            console.print(f"[yellow]{bar.name}: not measured: {problem}[/yellow]")
            yield _not_measured(bar, problem)
            continue
        try:
            with console.status(f"{bar.name}: {bar.what}"):
                row = _measure(bar, subject, blocks, block_seconds, runs, bound)
        except (RanksFailed, launch.TrafficError) as failure:
            # The other figures are still worth having.
            console.print(f"{bar.name}: {failure}", style="red", markup=False)
            row = _not_measured(bar, str(failure).splitlines()[0])
        yield row


def names_like(patterns: Iterable[str], names: list[str]) -> list[str]:
    """The names that match; raises ValueError for a pattern that matches none."""
    chosen = []
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise ValueError(f"no bar {pattern}; there are {', '.join(names)}")
        chosen += matched
    return chosen


def measured_bounds(console: Console, bars: list[Bar]) -> dict[Topology | None, dict[str, Any]]:
    """What iperf3 measures on the virtual hosts of the bars that ask for it."""
    topologies = list(dict.fromkeys(bar.topology for bar in bars if bar.bound and bar.topology))
    if not topologies or lab_unavailable():
        return {}
    if problem := iperf.unavailable():
        console.print(f"[yellow]the bound by iperf3 is left out: {problem}[/yellow]")
        return {}
    bounds: dict[Topology | None, dict[str, Any]] = {}
    for topology in topologies:
        try:
            with console.status(f"iperf3: {topology.describe()}"):
                bounds[topology] = iperf.both_ways(topology)
        except (LabError, RanksFailed) as failure:
            # The rows are still worth having.
            console.print(f"{topology.describe()}: {failure}", style="red", markup=False)
    return bounds


def write_rows(out: Path, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the figures of the rows to `out`, and beside it all that was measured for them."""
    raw = raw_path(out)
    cells = read_raw(raw) if raw.exists() else {}
    cells |= {row["bar"]["name"]: row.get("cells", []) for row in rows}
    short = [{key: row[key] for key in row if key != "cells"} for row in rows]
    every = _with_others(short, machine, out)
    report.write_json(out, machine, {"rows": every})
    write_raw(raw, {row["bar"]["name"]: cells.get(row["bar"]["name"], []) for row in every})


def _with_others(
    rows: list[dict[str, Any]], machine: dict[str, Any], file: Path
) -> list[dict[str, Any]]:
    """The new `rows` with where they were measured, and the rows that `file` has beside them."""
    by_name = {}
    if file.exists():
        old = json.loads(file.read_text())
        by_name = {row["bar"]["name"]: {"machine": old["machine"], **row} for row in old["rows"]}
    by_name |= {row["bar"]["name"]: {"machine": machine, **row} for row in rows}
    return [by_name[bar.name] for bar in BARS if bar.name in by_name]


def _unavailable(bar: Bar) -> str | None:
    if bar.topology and (problem := lab_unavailable()):
        return problem
    if bar.against == IPERF:
        return iperf.unavailable()
    return openmpi.unavailable() if bar.against == OPENMPI else None


def _not_measured(bar: Bar, why: str) -> dict[str, Any]:
    return {"bar": asdict(bar), "what": bar.what, "goal": bar.goal, "not_measured": why}


def _measure(
    bar: Bar,
    subject: str,
    blocks: int,
    block_seconds: float,
    runs: dict[launch.Job, list[dict[str, Any]]],
    bound: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The bar's row. `runs` holds what has been measured already, `bound` what iperf3 did."""
    subject = bar.subject or subject
    others: tuple[str, ...] = (bar.against,)
    if bar.against in (LINE_RATE, IPERF, BLOCK_ORDER) or bar.against_op:
        others = ()
    elif bar.against == BEST_FIXED:
        others = tuple(f"{subject}:{algorithm}" for algorithm in bar.fixed or FIXED[bar.op])
    ops = (bar.op, *([bar.against_op] if bar.against_op else []))
    job = launch.Job(
        # All phases of a start are measured in one run.
        ops=startup.PHASES if bar.op in startup.PHASES else ops,
        sizes=tuple(parse_size(size) for size in bar.run_sizes or bar.sizes),
        backends=(*(bar.together or (subject,)), *others),
        ranks=bar.ranks,
        blocks=bar.blocks or blocks,
        block_seconds=bar.block_seconds or block_seconds,
        explained=bar.against == BEST_FIXED,
        cores=bar.cores,
        topology=bar.topology,
        placement=placement_of(bar),
    )
    # Of several Open MPIs the fastest is the one to beat.
    jobs = [job]
    if bar.against == OPENMPI:
        jobs = [replace(job, openmpi=each) for each in openmpi.installations()]
    measured = [_run(each, runs) for each in jobs]
    if bar.against == BLOCK_ORDER:
        in_blocks = _run(replace(job, placement=None), runs)
        measured = [with_block_order(cells, subject, in_blocks) for cells in measured]
    cells = min(measured, key=lambda each: figures_of(bar, subject, each, bound)[0]["against_time"])
    figures = figures_of(bar, subject, cells, bound)
    # The size at which it looks worst stands for all.
    worst = min(figures, key=lambda each: float(each["ratio"]))
    row: dict[str, Any] = {"bar": asdict(bar), "what": bar.what, "goal": bar.goal}
    row |= {"cells": cells, "sizes": figures} | worst
    row["reached"] = _verdict(bar, row)
    if bound:
        row["bound"] = bound
    return row


def _verdict(bar: Bar, row: dict[str, Any]) -> bool | str:
    if bar.slack is not None:
        return bool(row["time"] - row["against_time"] <= bar.slack)
    if row["ratio"] < bar.ratio and row.get("interval", (0, 0))[1] >= bar.ratio:
        return report.UNDECIDED
    return bool(row["ratio"] >= bar.ratio)


def placement_of(bar: Bar) -> tuple[int, ...] | None:
    """The host of each rank; None if ranks are in the order of their hosts."""
    if bar.topology is None or not bar.interleaved:
        return None
    return tuple(bar.topology.interleaved(bar.ranks // bar.topology.hosts))


def _run(job: launch.Job, runs: dict[launch.Job, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Its cells, measured now unless they are in `runs`."""
    if job not in runs:
        if job.ops == startup.PHASES:
            runs[job] = startup.run(job.ranks, job.backends, job.blocks)
        else:
            runs[job] = launch.run(job)
    return runs[job]


def with_block_order(
    cells: list[dict[str, Any]], subject: str, in_blocks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The cells of one placement, each with what the other one took as one more backend."""
    return [
        {**cell, "backends": {**cell["backends"], BLOCK_ORDER: other["backends"][subject]}}
        for cell, other in zip(cells, in_blocks, strict=True)
    ]


def figures_of(
    bar: Bar,
    ours: str,
    cells: list[dict[str, Any]],
    bound: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What the bar compares, for each size."""
    rows = []
    sizes = {0}
    if bar.op not in startup.PHASES:
        sizes = {OPS[bar.op].round_size(parse_size(size), bar.ranks) for size in bar.sizes}
    for cell in cells:
        if cell["op"] != bar.op or cell["size"] not in sizes:
            continue
        figures = cell["backends"][ours]
        others = [each for each in cell["backends"].items() if each[0] not in (ours, *bar.together)]
        row: dict[str, Any] = {"size": cell["size"], "time": figures["median"]}
        row["cpu_seconds"] = figures["cpu_seconds"]
        if bar.against == LINE_RATE:
            assert bar.topology is not None
            row["against_time"] = summary.line_seconds(cell, bits_per_second(bar.topology.rate))
        elif bar.against == IPERF:
            assert bound is not None
            row["against_time"] = summary.line_seconds(cell, min(bound["bits_per_second"]))
        elif bar.against_op:
            other = next(
                each
                for each in cells
                if each["op"] == bar.against_op and each["size"] == cell["size"]
            )
            row["against_time"] = other["backends"][ours]["median"]
        else:
            theirs = others[0][0]
            if bar.against == BEST_FIXED:
                labels = [label for label, _ in others]
                lead = summary.lead_over_best(cell, ours, labels)
                theirs, row["ratio"], row["interval"] = lead.best, lead.ratio, lead.interval
                row["by_model"] = _by_model(cell, ours, labels)
            their_figures = cell["backends"][theirs]
            row["against_time"] = their_figures["median"]
            row["against_cpu_seconds"] = their_figures["cpu_seconds"]
            row["against_label"] = theirs
            row["spread"] = summary.ratio_spread(cell, ours, theirs)
        row.setdefault("ratio", row["against_time"] / row["time"])
        rows.append(row)
    return rows


def _by_model(cell: dict[str, Any], ours: str, labels: list[str]) -> dict[str, Any]:
    """What the model chose before the first call, and its ratio where it was measured."""
    algorithm = cell["history"]["candidates"][0]["algorithm"]
    label = f"{ours}:{algorithm}"
    ratio = summary.lead_over_best(cell, label, labels).ratio if label in labels else None
    return {"algorithm": algorithm, "ratio": ratio}


def _columns(row: dict[str, Any]) -> list[str]:
    bar = row["bar"]
    against = bar["against"]
    if against == BEST_FIXED and "against_label" in row:
        against = f"best fixed: {row['against_label'].partition(':')[2]}"
        against += f" (the model's choice: {row['by_model']['algorithm']})"
    elif bar["against_op"]:
        against = bar["against_op"]
    start = [bar["name"], row["what"], against]
    if "not_measured" in row:
        return [*start, "", "", "", "", "", row["goal"], "not measured"]
    if len(row["sizes"]) > 1:
        start[1] += f" (worst: {report.size(row['size'])})"
    spread = row.get("interval") or row.get("spread")
    text = " ({:.2f}-{:.2f})".format(*spread) if spread else ""
    cpu = row.get("against_cpu_seconds")
    return [
        *start,
        report.duration(row["time"]),
        report.duration(row["cpu_seconds"]),
        report.duration(row["against_time"]),
        report.duration(cpu) if cpu is not None else "",
        f"{row['ratio']:.2f}x{text}",
        row["goal"],
        _VERDICTS[row["reached"]],
    ]


_HEADER = (
    "figure",
    "what",
    "against",
    "time",
    "CPU",
    "their time",
    "their CPU",
    "ratio (by block, or 95 %)",
    "to reach",
    "reached",
)


def _markdown(rows: list[dict[str, Any]]) -> str:
    runs: list[dict[str, Any]] = []
    for row in rows:
        if row["machine"] not in runs:
            runs.append(row["machine"])
    lines = ["# Figures to reach", ""]
    for number, machine in enumerate(runs, 1):
        lines += [f"Run {number}, {machine['time']}: {facts.describe(machine)}", ""]
    table = ([*_columns(row), str(runs.index(row["machine"]) + 1)] for row in rows)
    return "\n".join(lines) + "\n" + report.markdown([*_HEADER, "run"], table) + _bounds(rows)


def iperf_bound(row: dict[str, Any]) -> float | None:
    """Bits per second that iperf3 moved in its slower direction; None where it did not run."""
    return min(row["bound"]["bits_per_second"]) if row.get("bound") else None


def rate_each_way(row: dict[str, Any]) -> float:
    """Bits per second of an all-reduce between two hosts: each sends its whole buffer once."""
    return float(row["size"] * 8 / row["time"])


def _bounds(rows: list[dict[str, Any]]) -> str:
    """A table of the rows that have a bound by iperf3."""
    lines = []
    for row in rows:
        if "time" in row and (bound := iperf_bound(row)):
            rate = rate_each_way(row)
            name, share = row["bar"]["name"], f"{rate / bound:.0%}"
            lines.append([name, report.bits(bound), report.bits(rate), share])
    if not lines:
        return ""
    header = ["figure", "iperf3 --bidir, each way", "all-reduce, each way", "share"]
    return "\n## What the links carry\n\n" + report.markdown(header, lines)
