"""Results as a JSON file and as a table for a person."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import facts, summary
from tests.lab.topology import UNSHAPED, Topology, bits_per_second

# A verdict: the interval of a ratio holds what is to be reached.
UNDECIDED = "undecided"
# Of a table: the heading of each column, and its cell in a row.
Columns = Sequence[tuple[str, Callable[[Any], str]]]


def console() -> Console:
    """A console whose tables stay whole when the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else 140)


def write_json(path: Path, machine: dict[str, Any], body: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **body}, indent=1) + "\n")


def table(
    title: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], str | None]]
) -> Table:
    """A table for a terminal; each row has its cells and a style."""
    made = Table(title=title, title_justify="left")
    for name in head:
        made.add_column(name)
    for cells, style in rows:
        made.add_row(*cells, style=style)
    return made


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_of(columns: Columns, rows: Iterable[Any]) -> str:
    """A table in Markdown with a line for each row."""
    return markdown([head for head, _ in columns], cells_of(columns, rows))


def cells_of(columns: Columns, rows: Iterable[Any]) -> list[list[str]]:
    """The cells of each row."""
    return [[cell(row) for _, cell in columns] for row in rows]


def verdict(is_met: bool) -> str:
    """A word for a goal."""
    return "met" if is_met else "NOT met"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def bandwidth(bytes_per_second: float) -> str:
    if bytes_per_second == 0:
        return "-"
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_second >= scale:
            return f"{bytes_per_second / scale:.3g} {unit}"
    return f"{bytes_per_second / 1e3:.3g} kB/s"


def bits(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e9:.2f} Gbit/s"


def size(count: int) -> str:
    for unit, scale in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale} {unit}iB"
    return f"{count} B"


def print_cells(
    console: Console, title: str, cells: list[dict[str, Any]], topology: Topology | None = None
) -> None:
    """A table for each collective and number of ranks: medians, ratios, CPU time, bus bandwidth.

    In brackets stands the range of the ratio over the blocks.
    """
    console.rule(title)
    for (op, ranks), panel in panels(cells).items():
        console.print(_table(f"{op}, {ranks} ranks", panel, topology))


def panels(cells: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The cells by collective and number of ranks, in their order, which is by size."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in cells:
        found.setdefault((cell["op"], cell["ranks"]), []).append(cell)
    return found


def _table(title: str, cells: list[dict[str, Any]], topology: Topology | None) -> Table:
    names = list(cells[0]["backends"])
    table = Table(title=title, title_justify="left")
    table.add_column("size", justify="right")
    for heading in ["{}", "CPU {}", "bus {}"] + (["line {}"] if topology else []):
        for name in names:
            table.add_column(heading.format(name), justify="right")
        if heading == "{}":
            for name in names[1:]:
                table.add_column(f"vs {name}", justify="right")
    for cell in cells:
        figures = list(cell["backends"].values())
        row = [size(cell["size"])]
        row += [duration(f["median"]) for f in figures]
        for name in names[1:]:
            value = summary.ratio(cell, names[0], name)
            low, high = summary.ratio_spread(cell, names[0], name)
            colour = "green" if value >= 1 else "red"
            row.append(f"[{colour}]{value:.3g}x[/{colour}] [dim]({low:.3g}-{high:.3g})[/dim]")
        row += [duration(f["cpu_seconds"]) for f in figures]
        row += [bandwidth(f["bus_bandwidth"]) for f in figures]
        if topology:
            row += [_line_share(cell, f, topology) for f in figures]
        table.add_row(*row)
    return table


def print_facts(console: Console, machine: dict[str, Any]) -> None:
    console.print(f"[dim]{facts.describe(machine)}[/dim]")


def _line_share(cell: dict[str, Any], figures: dict[str, Any], topology: Topology) -> str:
    if topology.racks > 1 or topology.links or topology.rate == UNSHAPED:
        return "-"
    return f"{summary.line_seconds(cell, bits_per_second(topology.rate)) / figures['median']:.1%}"


def ways(measured: dict[str, Any]) -> list[str]:
    """Time, bytes and processor time of each way of doing the same, for a person."""
    width = max(map(len, measured))
    return [
        f"  {name:{width}}  {duration(way['seconds']):>8}, "
        f"{way['bytes_sent'] / 1e6:.1f} MB sent per rank, CPU {way['cpu_seconds']:.2f} s"
        for name, way in measured.items()
    ]
