"""`python -m benchmarks bars`: the figures q7x2 must reach, measured by one command.

A new figure is a new row of BARS.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import facts, launch, openmpi, plots, report, summary
from benchmarks.arguments import parse_size
from benchmarks.backends import EMPTY, OPENMPI
from benchmarks.comparison import RESULTS
from benchmarks.lab import Link, Topology
from benchmarks.lab import unavailable as lab_unavailable
from benchmarks.lab.topology import bits_per_second
from benchmarks.processes import RanksFailed

SUBJECT = "q7x2"
LINE_RATE = "line rate"
BEST_FIXED = "best fixed"
# What the automatic choice is held against. Those that do not offer a collective are left out.
FIXED = {
    "all_reduce": (
        *("direct", "recursive_doubling", "halving_doubling", "binomial_tree"),
        *("double_binary_tree", "ccube", "sra", "ring", "multitree", "hierarchical", "blink"),
    ),
    "broadcast": ("direct", "binomial_tree", "double_binary_tree", "chain", "ccube"),
    "all_gather": ("direct", "ring", "halving_doubling", "multitree"),
    "reduce_scatter": ("sra", "ring", "halving_doubling", "multitree"),
    "all_to_all": ("direct", "pairwise"),
}


@dataclass(frozen=True)
class Bar:
    """One figure: `op` at each of `sizes` must be at least `ratio` times as fast as `against`.

    Attributes:
        against: a backend; LINE_RATE: the time that a ring all-reduce takes at least there;
            BEST_FIXED: the fastest of the algorithms in FIXED, each forced in the same group, which
            was tuned before.
        slack: instead of a ratio: seconds by which it may be slower.
        cores: the ranks share that many; 0 for all.
        topology: virtual hosts with one rank each, or None for one host.
        interleaved: neighbour ranks sit in different racks.
        subject: the backend under test, where it is not the one of the command.
        against_op: what `against` runs, where it is not the same.
        fixed: instead of all in FIXED, where the slow ones would take too long.
        blocks, block_seconds: turns of each backend and their length, where the command's do not
            suit.
        together: subjects of several bars that are measured in one run, against the same.
    """

    name: str
    op: str
    sizes: tuple[str, ...]
    ranks: int
    against: str
    ratio: float = 1.0
    slack: float | None = None
    cores: int = 0
    topology: Topology | None = None
    interleaved: bool = False
    subject: str | None = None
    against_op: str | None = None
    fixed: tuple[str, ...] | None = None
    blocks: int | None = None
    block_seconds: float | None = None
    together: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        sizes = [report.size(parse_size(size)) for size in self.sizes]
        place = self.topology.describe() if self.topology else f"{self.ranks} ranks, one host"
        if self.interleaved:
            place += ", ranks interleaved"
        span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} ... {sizes[-1]}"
        return f"{self.op} {span}, {place}" + (f", {self.cores} cores" if self.cores else "")

    @property
    def goal(self) -> str:
        if self.slack is not None:
            return f"+{report.duration(self.slack)}"
        return f"{self.ratio:g}x"


FOUR_HOSTS = Topology(hosts=4, rate="1gbit")
TWO_RACKS = Topology(hosts=8, rate="200mbit", racks=2, uplink="50mbit")
PRIVATE_LINKS = Topology(
    hosts=4, rate="20mbit", links=tuple(Link(0, host, "100mbit") for host in (1, 2, 3))
)
SLOW_HOSTS = Topology(hosts=4, rate="100mbit")
# What 100 MB with a codec must reach against dense Gloo, at 100 Mbit/s and at 1 Gbit/s.
CODED = {
    "fp16": (1.9, 1.8),
    "int8": (3.4, 3.2),
    "int4": (6.7, 5.5),
    "ternary": (11.0, 7.0),
    "onebit": (20.0, 8.0),
}
ALL_SIZES = ("4", "64", "1K", "16K", "256K", "1M", "4M", "16M")
SMALL_SIZES = ("4", "1K", "16K", "64K")
AUTO_SIZES = ("4", "1K", "64K", "1M", "16M")
# A difference of some percent shows in pairs of short turns: the machine has no time to change.
MANY_TURNS: dict[str, Any] = {"blocks": 40, "block_seconds": 0.02}
MOVES = ("broadcast", "all_gather", "reduce_scatter", "all_to_all")

BARS = (
    Bar("latency-2", "all_reduce", ("4",), 2, "gloo", 18.0),
    Bar("floor-2", "all_reduce", ("4",), 2, EMPTY, slack=4e-6),
    Bar("latency-4-on-2", "all_reduce", ("1K",), 4, "gloo", 40.0, cores=2),
    Bar("medium-2-mpi", "all_reduce", ("64K",), 2, OPENMPI, 0.9),
    Bar("bandwidth-2", "all_reduce", ("16M",), 2, "gloo", 6.0),
    Bar("bandwidth-2-mpi", "all_reduce", ("16M",), 2, OPENMPI, 1.0),
    Bar("bandwidth-4-on-2", "all_reduce", ("16M",), 4, "gloo", 2.5, cores=2),
    Bar("bandwidth-4-on-2-mpi", "all_reduce", ("16M",), 4, OPENMPI, 1.0, cores=2),
    *(Bar(f"{op}-4", op, ("1M",), 4, "gloo", 3.0) for op in MOVES),
    *(Bar(f"{op}-4-all", op, ALL_SIZES, 4, "gloo", 1.0, blocks=5) for op in MOVES),
    Bar("network-4-small", "all_reduce", SMALL_SIZES, 4, "gloo", 4.0, topology=FOUR_HOSTS),
    Bar("network-4", "all_reduce", ("16M",), 4, "gloo", 1.0, topology=FOUR_HOSTS),
    Bar("network-4-line", "all_reduce", ("16M",), 4, LINE_RATE, 0.95, topology=FOUR_HOSTS),
    Bar("racks", "all_reduce", ("16M",), 8, "gloo", 1.7, topology=TWO_RACKS, blocks=3),
    Bar(
        *("racks-interleaved", "all_reduce", ("16M",), 8, "gloo", 6.0),
        topology=TWO_RACKS,
        interleaved=True,
        blocks=3,
    ),
    Bar("links", "all_reduce", ("16M",), 4, "gloo", 6.0, topology=PRIVATE_LINKS, blocks=3),
    Bar(
        *("ccube-overlap", "all_reduce", ("16M",), 4, "q7x2:ccube", 1.7),
        topology=FOUR_HOSTS,
        subject="q7x2:ccube",
        against_op="reduce_then_broadcast",
    ),
    Bar(
        *("ccube-first", "first_piece", ("16M",), 4, "gloo", 1 / 0.3),
        topology=FOUR_HOSTS,
        subject="q7x2:ccube",
    ),
    Bar("auto-2", "all_reduce", AUTO_SIZES, 2, BEST_FIXED, 0.95, **MANY_TURNS),
    Bar("auto-4-on-2", "all_reduce", AUTO_SIZES, 4, BEST_FIXED, 0.95, cores=2, **MANY_TURNS),
    *(Bar(f"auto-{op}-4", op, ("1M",), 4, BEST_FIXED, 0.95, **MANY_TURNS) for op in MOVES),
    Bar(
        *("auto-network-4", "all_reduce", (*SMALL_SIZES, "1M", "16M"), 4, BEST_FIXED, 0.95),
        topology=FOUR_HOSTS,
        blocks=11,
        block_seconds=0.03,
    ),
    Bar(
        *("auto-racks", "all_reduce", ("16M",), 8, BEST_FIXED, 0.95),
        topology=TWO_RACKS,
        interleaved=True,
        fixed=("ring", "halving_doubling", "ccube", "hierarchical", "blink"),
        blocks=2,
    ),
    Bar(
        *("auto-links", "all_reduce", ("16M",), 4, BEST_FIXED, 0.95),
        topology=PRIVATE_LINKS,
        fixed=("ring", "aggregator", "ccube", "hierarchical", "blink"),
        blocks=2,
    ),
    *(
        Bar(
            *(f"{codec}-{topology.rate}", "all_reduce_normal", ("100M",), 4, "gloo", goals[i]),
            topology=topology,
            subject=f"{SUBJECT}+{codec}",
            blocks=3 if i else 2,
            together=tuple(f"{SUBJECT}+{each}" for each in CODED),
        )
        for i, topology in enumerate((SLOW_HOSTS, FOUR_HOSTS))
        for codec, goals in CODED.items()
    ),
    *(
        Bar(
            *(f"topk-{topology.rate}", "all_reduce_normal", ("100M",), 4, "gloo", 15.0),
            topology=topology,
            subject=f"{SUBJECT}+topk:0.01",
            blocks=2,
        )
        for topology in (SLOW_HOSTS, FOUR_HOSTS)
    ),
    Bar(
        "balanced-100mbit",
        "all_reduce_clustered",
        ("16M",),
        4,
        f"{SUBJECT}+topk:0.01:reselect",
        1.5,
        topology=SLOW_HOSTS,
        subject=f"{SUBJECT}+topk:0.01:reselect:balanced",
        blocks=3,
    ),
    Bar(
        *("fill-60-1gbit", "all_reduce_normal", ("100M",), 4, SUBJECT, 0.95),
        topology=FOUR_HOSTS,
        subject=f"{SUBJECT}+topk:0.6",
        blocks=3,
    ),
)


def main(argv: list[str]) -> None:
    names = [bar.name for bar in BARS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks bars", description=__doc__)
    parser.add_argument(
        "--only",
        help=f"comma-separated, of {', '.join(names)}; other rows of --out stay as they are",
    )
    parser.add_argument("--subject", default=SUBJECT, help="the backend under test")
    parser.add_argument("--blocks", type=int, default=9, help="turns of each backend")
    parser.add_argument("--block-seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--out", type=Path, default=RESULTS / "bars.json")
    args = parser.parse_args(argv)
    wanted = args.only.split(",") if args.only else names
    if unknown := set(wanted) - set(names):
        raise ValueError(f"no bar {', '.join(unknown)}; there are {', '.join(names)}")

    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    rows = []
    runs: dict[launch.Job, list[dict[str, Any]]] = {}
    for bar in BARS:
        if bar.name not in wanted:
            continue
        problem = _unavailable(bar)
        if problem:
            console.print(f"[yellow]{bar.name}: not measured: {problem}[/yellow]")
            rows.append(_not_measured(bar, problem))
            continue
        try:
            with console.status(f"{bar.name}: {bar.what}"):
                rows.append(_measure(bar, args.subject, args.blocks, args.block_seconds, runs))
        except (RanksFailed, launch.TrafficError) as failure:
            # The other figures are still worth having.
            console.print(f"{bar.name}: {failure}", style="red", markup=False)
            rows.append(_not_measured(bar, str(failure).splitlines()[0]))
    _print(console, rows)
    rows = _with_others(rows, machine, args.out)
    report.write_json(args.out, machine, {"rows": rows})
    markdown = args.out.with_suffix(".md")
    markdown.write_text(_markdown(rows))
    picture = args.out.with_suffix(".png")
    plots.draw_goals(rows, picture)
    console.print(f"written: {args.out}, {markdown}, {picture}")


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
    return openmpi.unavailable() if bar.against == OPENMPI else None


def _not_measured(bar: Bar, why: str) -> dict[str, Any]:
    return {"bar": asdict(bar), "what": bar.what, "goal": bar.goal, "not_measured": why}


def _measure(
    bar: Bar,
    subject: str,
    blocks: int,
    block_seconds: float,
    runs: dict[launch.Job, list[dict[str, Any]]],
) -> dict[str, Any]:
    """The bar's row. `runs` holds what has been measured already."""
    subject = bar.subject or subject
    others: tuple[str, ...] = (bar.against,)
    if bar.against == LINE_RATE or bar.against_op:
        others = ()
    elif bar.against == BEST_FIXED:
        others = tuple(f"{subject}:{algorithm}" for algorithm in bar.fixed or FIXED[bar.op])
    job = launch.Job(
        ops=(bar.op, *([bar.against_op] if bar.against_op else [])),
        sizes=tuple(parse_size(size) for size in bar.sizes),
        backends=(*(bar.together or (subject,)), *others),
        ranks=bar.ranks,
        blocks=bar.blocks or blocks,
        block_seconds=bar.block_seconds or block_seconds,
        tuned=bar.against == BEST_FIXED,
        cores=bar.cores,
        topology=bar.topology,
        placement=tuple(bar.topology.interleaved()) if bar.topology and bar.interleaved else None,
    )
    # Of several Open MPIs the fastest is the one to beat.
    jobs = [job]
    if bar.against == OPENMPI:
        jobs = [replace(job, openmpi=each) for each in openmpi.installations()]
    for each in jobs:
        if each not in runs:
            runs[each] = launch.run(each)
    measured = [runs[each] for each in jobs]
    cells = min(measured, key=lambda each: _figures(bar, subject, each)[0]["against_time"])
    figures = _figures(bar, subject, cells)
    # The size at which it looks worst stands for all.
    worst = min(figures, key=lambda each: float(each["ratio"]))
    row: dict[str, Any] = {"bar": asdict(bar), "what": bar.what, "goal": bar.goal}
    row |= {"cells": cells, "sizes": figures} | worst
    row["reached"] = (
        row["time"] - row["against_time"] <= bar.slack
        if bar.slack is not None
        else row["ratio"] >= bar.ratio
    )
    return row


def _figures(bar: Bar, ours: str, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the bar compares, for each size."""
    rows = []
    for cell in cells:
        if cell["op"] != bar.op:
            continue
        figures = cell["backends"][ours]
        others = [each for each in cell["backends"].items() if each[0] not in (ours, *bar.together)]
        row: dict[str, Any] = {"size": cell["size"], "time": figures["median"]}
        row["cpu_seconds"] = figures["cpu_seconds"]
        if bar.against == LINE_RATE:
            assert bar.topology is not None
            share = summary.line_share(figures, bits_per_second(bar.topology.rate))
            row["against_time"] = figures["median"] * share
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
                theirs, row["ratio"] = summary.best_of(cell, ours, labels)
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
    """What is chosen before anything has been tuned, and its ratio where it was measured."""
    algorithm = min(cell["tuned"], key=lambda each: float(each["predicted"]))["algorithm"]
    label = f"{ours}:{algorithm}"
    ratio = summary.best_of(cell, label, labels)[1] if label in labels else None
    return {"algorithm": algorithm, "ratio": ratio}


def _columns(row: dict[str, Any]) -> list[str]:
    bar = row["bar"]
    against = bar["against"]
    if against == BEST_FIXED and "against_label" in row:
        against = f"best fixed: {row['against_label'].partition(':')[2]}"
    elif bar["against_op"]:
        against = bar["against_op"]
    start = [bar["name"], row["what"], against]
    if "not_measured" in row:
        return [*start, "", "", "", "", "", row["goal"], "not measured"]
    if len(row["sizes"]) > 1:
        start[1] += f" (worst: {report.size(row['size'])})"
    spread = " ({:.2f}-{:.2f})".format(*row["spread"]) if "spread" in row else ""
    cpu = row.get("against_cpu_seconds")
    return [
        *start,
        report.duration(row["time"]),
        report.duration(row["cpu_seconds"]),
        report.duration(row["against_time"]),
        report.duration(cpu) if cpu is not None else "",
        f"{row['ratio']:.2f}x{spread}",
        row["goal"],
        "yes" if row["reached"] else "no",
    ]


_HEADER = (
    "figure",
    "what",
    "against",
    "time",
    "CPU",
    "their time",
    "their CPU",
    "ratio (by block)",
    "to reach",
    "reached",
)


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="Figures to reach")
    for name in _HEADER:
        table.add_column(name)
    for row in rows:
        style = None if "not_measured" in row else ("green" if row["reached"] else "red")
        table.add_row(*_columns(row), style=style)
    console.print(table)


def _markdown(rows: list[dict[str, Any]]) -> str:
    runs: list[dict[str, Any]] = []
    for row in rows:
        if row["machine"] not in runs:
            runs.append(row["machine"])
    lines = ["# Figures to reach", ""]
    for number, machine in enumerate(runs, 1):
        lines += [f"Run {number}, {machine['time']}: {facts.describe(machine)}", ""]
    lines += [_line([*_HEADER, "run"]), _line(["---"] * (len(_HEADER) + 1))]
    lines += [_line([*_columns(row), str(runs.index(row["machine"]) + 1)]) for row in rows]
    return "\n".join(lines) + "\n"


def _line(columns: list[str]) -> str:
    return "| " + " | ".join(columns) + " |"
