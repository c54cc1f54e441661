"""``q7x2 plan explain``: what the planner thinks of each algorithm for one call."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from q7x2 import _fabric_arguments


def add_parser(commands: Any) -> None:
    """Add ``explain`` to the subcommands of ``q7x2 plan``."""
    parser = commands.add_parser(
        "explain",
        help="show the candidates for a call, best first",
        epilog="for example: q7x2 plan explain --op all_reduce --size 16M --hosts 8 --racks 2 "
        "--rate 200mbit --uplink 50mbit",
    )
    _fabric_arguments.add_arguments(parser)
    parser.add_argument("--algorithm", default="", metavar="NAMES", help="only these")
    parser.add_argument("--codec", default="", help="compressed, such as int8 or topk:0.01")
    parser.add_argument(
        "--edges", default="auto", help="the edges that are compressed: auto, all, host, rack, slow"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2._extension import load

    try:
        candidates = load().explain(
            options.op,
            options.size,
            _fabric_arguments.fabric_json(options),
            _fabric_arguments.root_of(options),
            options.algorithm,
            codec=options.codec,
            edges=options.edges,
        )
    except (OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 plan explain: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(candidates, indent=2))
    else:
        codec = f" with {options.codec}" if options.codec else ""
        print_candidates(candidates, f"{options.op} of {amount(options.size)}{codec}")
    return 0


def print_candidates(candidates: list[dict[str, Any]], title: str) -> None:
    """Print a table of what ``q7x2._C.explain`` returned; ``~`` marks what was not simulated."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("algorithm", no_wrap=True)
    for name in ("predicted", "measured", "first slice", "slice", "window"):
        table.add_column(name, justify="right")
    table.add_column("bottleneck")
    table.add_column("bytes through it", justify="right")
    for number, each in enumerate(candidates):
        bottleneck, through = "latency", ""
        if each["bottleneck"] is not None:
            load = each["loads"][each["bottleneck"]]
            bottleneck = f"{load['name']}, {load['busy'] / each['seconds']:.0%} busy"
            through = amount(load["bytes"]) if load["bytes"] else ""
        coded = "" if each["edges"] == "none" else f", {each['edges']} coded"
        table.add_row(
            each["algorithm"] + coded,
            ("" if each["simulated"] else "~") + duration(each["seconds"]),
            "" if each["measured"] is None else duration(each["measured"]),
            duration(each["first_slice_seconds"]),
            amount(each["slice_bytes"]),
            str(each["window"]),
            bottleneck,
            through,
            style="bold green" if number == 0 else None,
        )
    Console().print(table)


def amount(count: float) -> str:
    """Bytes for a person: ``16 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def duration(seconds: float) -> str:
    """Seconds for a person: ``1.23 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
