"""Time and bandwidth of an all-reduce from 4 B to 64 MiB: a table, and a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.harness import arguments, facts, launch, openmpi, report
from benchmarks.harness.arguments import option
from benchmarks.harness.backends import OPENMPI
from tests.lab import Topology
from tests.lab import unavailable as lab_unavailable
from tests.lab.topology import bits_per_second

ONE_HOST, FOUR_HOSTS = "one-host", "four-hosts"
TITLES = {
    ONE_HOST: "2 ranks, one host",
    FOUR_HOSTS: "4 virtual hosts, 1 Gbit/s",
}
# Steps of four: 4 B, 16 B, ... 64 MiB.
SIZES = tuple(4 ** (k + 1) for k in range(13))

Point = tuple[float, float, float]  # the 25th percentile, the median, the 75th percentile

_INK, _MUTED, _GRID = "#1b1f24", "#6e7781", "#eaeef2"
_LOOKS = {
    "q7x2": ("q7x2", "#0b7285", 2.2),
    "gloo": ("Gloo", "#e8590c", 1.6),
    "openmpi": ("Open MPI", "#868e96", 1.6),
}
_STYLE = {
    **{"font.size": 10.5, "text.color": _INK, "axes.edgecolor": _MUTED, "axes.labelcolor": _INK},
    **{"xtick.color": _MUTED, "ytick.color": _MUTED, "axes.titlesize": 12},
    **{"axes.titleweight": "bold", "axes.titlelocation": "left"},
    **{"axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "white"},
}

OPTIONS = {
    "parts": option(
        ",".join(TITLES),
        f"comma-separated, of {', '.join(TITLES)}; other parts of --out stay as they are",
        type=arguments.names,
    ),
    "sizes": option(SIZES, "bytes, with K, M, G", type=arguments.sizes),
    "blocks": option(7, "turns of each backend"),
    "block_seconds": option(0.1, "length of a turn"),
}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if unknown := set(args.parts) - set(TITLES):
        raise ValueError(f"no part {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    earlier = json.loads(args.out.read_text())["parts"] if args.out.exists() else []
    parts = {part["name"]: part for part in earlier}
    console = report.console()
    for name in args.parts:
        if name == FOUR_HOSTS and (problem := lab_unavailable()):
            console.print(f"[yellow]{name}: not measured: {problem}[/yellow]")
            continue
        machine, job = facts.collect(), _job(name, args)
        cells = launch.run(job, lambda cell: console.print(f"measured {cell} B", style="dim"))
        report.print_cells(console, TITLES[name], cells, job.topology)
        rate = bits_per_second(job.topology.rate) / 8 if job.topology else None
        facts_of = {"name": name, "machine": machine, "link_bytes_per_second": rate}
        parts[name] = {**facts_of, "cells": cells}
        yield {"parts": [parts[each] for each in TITLES if each in parts]}


def write_more(out: Path, results: dict[str, Any]) -> None:
    """The picture."""
    draw(out.with_suffix(".png"), results["parts"], TITLES)


def _job(name: str, args: argparse.Namespace) -> launch.Job:
    common: dict[str, Any] = {
        "ops": ("all_reduce",),
        "sizes": args.sizes,
        "blocks": args.blocks,
        "block_seconds": args.block_seconds,
    }
    backends: tuple[str, ...] = ("q7x2", "gloo")
    if name == FOUR_HOSTS:
        topology = Topology(hosts=4, rate="1gbit")
        return launch.Job(**common, backends=backends, ranks=4, topology=topology)
    if mpi := openmpi.announced():
        backends = (*backends, OPENMPI)
    return launch.Job(**common, backends=backends, ranks=2, openmpi=mpi)


# ---- the picture ---------------------------------------------------------------------------------


def draw(path: Path, parts: list[dict[str, Any]], titles: dict[str, str]) -> None:
    """Writes a PNG: lines are medians, bands reach from the 25th to the 75th percentile."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * len(parts) + 0.6, 6.6), dpi=150, layout="constrained")
        figure.get_layout_engine().set(wspace=0.05, hspace=0.04, rect=(0.005, 0.05, 0.99, 0.945))
        grid = figure.subplots(2, len(parts), squeeze=False, sharex="col")
        for (above, below), part in zip(grid.T, parts, strict=True):
            above.set_title(f"all-reduce, {titles[part['name']]}")
            _lines(above, part["cells"], _times)
            above.yaxis.set_major_formatter(FuncFormatter(lambda t, _: report.duration(t)))
            _lines(below, part["cells"], _bandwidths)
            below.yaxis.set_major_formatter(FuncFormatter(lambda b, _: report.bandwidth(b)))
            _sizes(below, [cell["size"] for cell in part["cells"]])
            handles, labels = above.get_legend_handles_labels()
            above.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left")
            if part["link_bytes_per_second"]:
                _link(below, part["link_bytes_per_second"])
        grid[0][0].set_ylabel("time per call")
        grid[1][0].set_ylabel("bus bandwidth")
        figure.text(0.01, 0.012, _caption(parts), color=_MUTED, fontsize=7.5, linespacing=1.4)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _times(figures: dict[str, Any]) -> Point:
    return figures["p25"], figures["median"], figures["p75"]


def _bandwidths(figures: dict[str, Any]) -> Point:
    scale = figures["bus_bandwidth"] * figures["median"]
    return scale / figures["p75"], scale / figures["median"], scale / figures["p25"]


def _lines(axes: Axes, cells: list[dict[str, Any]], of: Callable[[Any], Point]) -> None:
    sizes = [cell["size"] for cell in cells]
    for backend in reversed(list(cells[0]["backends"])):
        label, colour, width = _LOOKS[backend]
        points = [of(cell["backends"][backend]) for cell in cells]
        low, middle, high = zip(*points, strict=True)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(sizes, middle, color=colour, linewidth=width, marker="o", ms=3.5, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=_GRID)
    axes.set_axisbelow(True)


def _link(axes: Axes, rate: float) -> None:
    axes.axhline(rate, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.annotate(
        "rate of a link",
        (0.02, rate),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=_MUTED,
        fontsize=9,
    )


def _sizes(axes: Axes, sizes: list[int]) -> None:
    axes.set_xticks(sizes[::2], [report.size(size) for size in sizes[::2]], fontsize=9)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of the tensor")


def _caption(parts: list[dict[str, Any]]) -> str:
    about = "Lines are medians, bands the middle half of all calls; backends alternate in one run."
    runs = dict.fromkeys(
        f"{facts.describe(part['machine'])}; load average before the run: "
        f"{part['machine']['load_average'][0]:.1f}"
        for part in parts
    )
    return "\n".join([about, *runs])
