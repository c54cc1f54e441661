"""``q7x2 simulate``: a collective on a virtual clock, on machines that nobody need have."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q7x2._core.palette import BLUE, GREY, SKY, VERMILION
from q7x2._core.units import bytes_text, time_text
from q7x2.fabric import arguments as fabric_arguments
from q7x2.plan.explain import print_table, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"send": BLUE, "recv": SKY, "reduce": VERMILION, "copy": GREY}


def add_parser(commands: Any) -> None:
    """Add ``simulate`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "simulate",
        help="run a collective on a virtual clock",
        epilog="for example: q7x2 simulate --op all_reduce --size 64M --hosts 1024 "
        "--algorithm ring",
    )
    fabric_arguments.add_arguments(parser, fabric_arguments.MOST_PLANS)
    parser.add_argument(
        "--algorithm", default="", metavar="NAMES", help="the best of these; default: of all"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="draw it: .svg, .png, .pdf")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2._core.extension import load

    try:
        fabric = fabric_arguments.fabric_json(options)
        root = fabric_arguments.root_of(options)
        best = load().explain(
            options.op, options.size, fabric, root, options.algorithm, simulate=True
        )[0]
        if options.json:
            print(json.dumps(best, indent=2))
        else:
            _print(best, f"{options.op} of {bytes_text(options.size)}")
        if options.timeline:
            steps = load().timeline(
                options.op,
                options.size,
                fabric,
                root,
                best["algorithm"],
                best["slice_bytes"],
                best["window"],
            )
            draw(steps, len(json.loads(fabric)["ranks"])).savefig(options.timeline)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 simulate: {error}", file=sys.stderr)
        return 1
    return 0


def _print(best: dict[str, Any], title: str) -> None:
    table = table_of("resource", "bytes", "busy", "share of the time")
    loads = sorted(best["loads"], key=lambda load: -load["busy"])
    for load in loads[:10]:
        table.add_row(
            load["name"],
            bytes_text(load["bytes"]) if load["bytes"] else "",
            time_text(load["busy"]),
            f"{load['busy'] / best['seconds']:.0%}",
        )
    print_table(
        f"{title} by {best['algorithm']}: {time_text(best['seconds'])}, the first slice of "
        f"{bytes_text(best['slice_bytes'])} after {time_text(best['first_slice_seconds'])}",
        table,
    )


def draw(steps: list[dict[str, Any]], world_size: int) -> Figure:
    """A timeline of what ``q7x2._C.timeline`` returned.

    A row for each of ``world_size`` ranks, sends above, then one for each server.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    members = max((step["rank"] for step in steps), default=0) + 1
    names = [str(rank) if rank < world_size else f"s{rank - world_size}" for rank in range(members)]
    figure = Figure(figsize=(11, 1.5 + 0.4 * members), layout="constrained")
    axes = figure.add_subplot()
    rows = {"send": -0.3, "recv": -0.1, "reduce": 0.1, "copy": 0.1}
    for kind, colour in _COLOURS.items():
        for rank in range(members):
            bars = [
                (step["begin"] * 1e3, (step["end"] - step["begin"]) * 1e3)
                for step in steps
                if step["kind"] == kind and step["rank"] == rank
            ]
            axes.broken_barh(bars, (rank + rows[kind], 0.2), color=colour, alpha=0.5)
    axes.set(xlabel="milliseconds", ylabel="rank")
    axes.set_yticks(range(members), names)
    axes.invert_yaxis()
    axes.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()],
        loc="upper right",
    )
    return figure
