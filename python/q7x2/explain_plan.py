"""``q7x2 plan explain``: what the planner thinks of each algorithm for one call."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
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
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="what a run has measured and chosen: the JSON of q7x2.plan_history(); the Fabric is "
        "not looked at then",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2._extension import load

    if options.history is not None:
        return _show_history(options)
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


def _show_history(options: argparse.Namespace) -> int:
    try:
        history = json.loads(options.history.read_text())
        kinds = [each for each in history if _is_of_kind(each, options)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"q7x2 plan explain: cannot read {options.history}: {error!r}", file=sys.stderr)
        return 1
    if not kinds:
        known = ", ".join(sorted({_title(each) for each in history})) or "none"
        print(
            f"q7x2 plan explain: {options.history} has no {options.op} of {amount(options.size)}; "
            f"it has: {known}",
            file=sys.stderr,
        )
        return 1
    if options.json:
        print(json.dumps(kinds, indent=2))
    else:
        for each in kinds:
            print_history(each)
    return 0


def _is_of_kind(kind: dict[str, Any], options: argparse.Namespace) -> bool:
    size_class = 1 << max(options.size - 1, 0).bit_length()
    wanted = (options.op, size_class, options.codec, _fabric_arguments.root_of(options))
    return (kind["collective"], kind["bytes"], kind["codec"], kind["root"]) == wanted


def _title(kind: dict[str, Any]) -> str:
    codec = f" with {kind['codec']}" if kind["codec"] else ""
    size = "parts of any size" if kind["bytes"] is None else f"up to {amount(kind['bytes'])}"
    return f"{kind['collective']} of {size}{codec}"


def print_history(kind: dict[str, Any]) -> None:
    """Print a table of one kind of call that ``q7x2.plan_history`` returned.

    A column is a decision: the calls that it counts for, what was known then, and the algorithms
    that were chosen, marked with ``*``.
    """
    from rich.console import Console
    from rich.table import Table

    events = kind["events"]
    table = Table(title=f"{_title(kind)}: {kind['calls']} calls")
    table.add_column("algorithm", no_wrap=True)
    table.add_column("predicted", justify="right")
    for event in events:
        table.add_column(f"from call {event['call']}", justify="right")
    for candidate in kind["candidates"]:
        name = candidate["algorithm"]
        cells = []
        for event in events:
            measured = event["measured"].get(name)
            time = f"{duration(measured['seconds'])} +- {measured['noise']:.0%}" if measured else ""
            cells.append(f"{time} *".strip() if name in event["choices"] else time)
        is_chosen = name in events[-1]["choices"]
        table.add_row(
            name,
            duration(candidate["predicted"]),
            *cells,
            style="bold green" if is_chosen else None,
        )
    Console().print(table)


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
