"""`python -m benchmarks bars`: the figures q7x2 must reach, measured by one command.

A new figure is a new row of BARS.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import facts, launch, openmpi, report, summary
from benchmarks.arguments import parse_size
from benchmarks.backends import OPENMPI
from benchmarks.comparison import RESULTS
from benchmarks.lab import Topology
from benchmarks.lab import unavailable as lab_unavailable
from benchmarks.lab.topology import bits_per_second
from benchmarks.processes import RanksFailed

SUBJECT = "q7x2"
LINE_RATE = "line rate"


@dataclass(frozen=True)
class Bar:
    """One figure: `op` at `size` must be at least `ratio` times as fast as `against`.

    Attributes:
        against: a backend, or LINE_RATE: the time that a ring all-reduce takes at least there.
        cores: the ranks share that many; 0 for all.
        topology: virtual hosts with one rank each, or None for one host.
        interleaved: neighbour ranks sit in different racks.
    """

    name: str
    op: str
    size: str
    ranks: int
    against: str
    ratio: float
    cores: int = 0
    topology: Topology | None = None
    interleaved: bool = False

    @property
    def what(self) -> str:
        place = self.topology.describe() if self.topology else f"{self.ranks} ranks, one host"
        if self.interleaved:
            place += ", ranks interleaved"
        return f"{self.op} {report.size(parse_size(self.size))}, {place}" + (
            f", {self.cores} cores" if self.cores else ""
        )


FOUR_HOSTS = Topology(hosts=4, rate="1gbit")

BARS = (
    Bar("latency-2", "all_reduce", "4", 2, "gloo", 8.0),
    Bar("latency-4-on-2", "all_reduce", "1K", 4, "gloo", 15.0, cores=2),
    Bar("bandwidth-2", "all_reduce", "16M", 2, "gloo", 3.0),
    Bar("network-4", "all_reduce", "16M", 4, "gloo", 1.0, topology=FOUR_HOSTS),
)


def main(argv: list[str]) -> None:
    names = [bar.name for bar in BARS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks bars", description=__doc__)
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(names)}")
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
    for bar in BARS:
        if bar.name not in wanted:
            continue
        problem = _unavailable(bar)
        if problem:
            console.print(f"[yellow]{bar.name}: not measured: {problem}[/yellow]")
            rows.append({"bar": asdict(bar), "what": bar.what, "not_measured": problem})
            continue
        try:
            with console.status(f"{bar.name}: {bar.what}"):
                rows.append(_measure(bar, args.subject, args.blocks, args.block_seconds))
        except (RanksFailed, launch.TrafficError) as failure:
            # The other figures are still worth having.
            console.print(f"{bar.name}: {failure}", style="red", markup=False)
            reason = str(failure).splitlines()[0]
            rows.append({"bar": asdict(bar), "what": bar.what, "not_measured": reason})
    _print(console, rows)
    report.write_json(args.out, machine, {"rows": rows})
    markdown = args.out.with_suffix(".md")
    markdown.write_text(_markdown(machine, rows))
    console.print(f"written: {args.out}, {markdown}")


def _unavailable(bar: Bar) -> str | None:
    if bar.topology and (problem := lab_unavailable()):
        return problem
    return openmpi.unavailable() if bar.against == OPENMPI else None


def _measure(bar: Bar, subject: str, blocks: int, block_seconds: float) -> dict[str, Any]:
    backends = (subject,) if bar.against == LINE_RATE else (subject, bar.against)
    job = launch.Job(
        ops=(bar.op,),
        sizes=(parse_size(bar.size),),
        backends=backends,
        ranks=bar.ranks,
        blocks=blocks,
        block_seconds=block_seconds,
        cores=bar.cores,
        topology=bar.topology,
        placement=tuple(bar.topology.interleaved()) if bar.topology and bar.interleaved else None,
    )
    # Of several Open MPIs the fastest is the one to beat.
    jobs = [job]
    if bar.against == OPENMPI:
        jobs = [replace(job, openmpi=each) for each in openmpi.installations()]
    cells = [launch.run(each)[0] for each in jobs]
    cell = min(cells, key=lambda each: next(reversed(each["backends"].values()))["median"])
    (ours, figures), *others = cell["backends"].items()
    row: dict[str, Any] = {"bar": asdict(bar), "what": bar.what, "cell": cell}
    row["time"], row["cpu_seconds"] = figures["median"], figures["cpu_seconds"]
    if others:
        theirs, their_figures = others[0]
        row["against_time"] = their_figures["median"]
        row["against_cpu_seconds"] = their_figures["cpu_seconds"]
        row["spread"] = summary.ratio_spread(cell, ours, theirs)
    else:
        assert bar.topology is not None
        share = summary.line_share(figures, bits_per_second(bar.topology.rate))
        row["against_time"] = figures["median"] * share
    row["ratio"] = row["against_time"] / row["time"]
    row["reached"] = row["ratio"] >= bar.ratio
    return row


def _columns(row: dict[str, Any]) -> list[str]:
    bar = row["bar"]
    start = [bar["name"], row["what"], bar["against"]]
    if "not_measured" in row:
        return [*start, "", "", "", "", "", f"{bar['ratio']:g}x", "not measured"]
    spread = " ({:.2f}-{:.2f})".format(*row["spread"]) if "spread" in row else ""
    cpu = row.get("against_cpu_seconds")
    return [
        *start,
        report.duration(row["time"]),
        report.duration(row["cpu_seconds"]),
        report.duration(row["against_time"]),
        report.duration(cpu) if cpu is not None else "",
        f"{row['ratio']:.2f}x{spread}",
        f"{bar['ratio']:g}x",
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


def _markdown(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = ["# Figures to reach", "", f"{machine['time']}: {facts.describe(machine)}", ""]
    lines += [_line(list(_HEADER)), _line(["---"] * len(_HEADER))]
    lines += [_line(_columns(row)) for row in rows]
    return "\n".join(lines) + "\n"


def _line(columns: list[str]) -> str:
    return "| " + " | ".join(columns) + " |"
