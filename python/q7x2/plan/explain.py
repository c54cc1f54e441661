"""``q7x2 plan explain``: what the planner thinks of each algorithm for one call."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q7x2._core.json_values import parse
from q7x2._core.units import bytes_text, time_text
from q7x2.fabric import arguments as fabric_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

# All other columns have figures, which stand at the right.
_TEXT_COLUMNS = (
    "algorithm",
    "bottleneck",
    "chosen",
    "coded",
    "collective",
    "from call",
    "resource",
)


# Times the ordinary time: a silence that matters.
_MUCH_LONGER = 1.2

# What a coding compresses, the one that loses least first.
_EDGES = {
    "none": "nothing",
    "racks": "edges between racks",
    "hosts": "edges between hosts",
    "all": "all edges",
}


def add_parser(commands: Any) -> None:
    """Add ``explain`` to the subcommands of ``q7x2 plan``."""
    parser = commands.add_parser(
        "explain",
        help="show the candidates for a call, best first",
        epilog="for example: q7x2 plan explain --op all_reduce --size 16M --hosts 8 --racks 2 "
        "--rate 200mbit --uplink 50mbit",
    )
    fabric_arguments.add_arguments(parser, fabric_arguments.MOST_RANKS)
    parser.add_argument("--algorithm", default="", metavar="NAMES", help="only these")
    parser.add_argument("--codec", default="", help="compressed, such as int8 or topk:0.01")
    parser.add_argument(
        "--edges", default="auto", help="the edges that are compressed: auto, all, host, rack, slow"
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="what a run has measured and chosen: the JSON of q7x2.plan.plan_history(); the Fabric "
        "is not looked at then",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2._core.extension import load

    if options.history is not None:
        return _show_history(options)
    try:
        fabric = fabric_arguments.fabric_json(options)
        root = fabric_arguments.root_of(options)
        candidates = load().explain(
            options.op,
            options.size,
            fabric,
            root,
            options.algorithm,
            codec=options.codec,
            edges=options.edges,
        )
        tasks = server_tasks(candidates[0]["algorithm"], options.op, fabric, root)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 plan explain: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(candidates, indent=2))
    else:
        codec = f" with {options.codec}" if options.codec else ""
        print_candidates(candidates, f"{options.op} of {bytes_text(options.size)}{codec}")
        for line in (*distant_groups(json.loads(fabric)), *silence(candidates[0])):
            print(line)
        if options.codec:
            print("\n".join(edge_comparison(candidates, options.edges)))
        for task in tasks:
            print(task)
    return 0


def distant_groups(fabric: dict[str, Any]) -> list[str]:
    """Which hosts of ``fabric`` are near each other, if others are far: a line per group."""
    if not any(rack.get("alpha") for rack in fabric.get("racks", [])):
        return []
    hosts: dict[int, list[str]] = {}
    for host in fabric["hosts"]:
        hosts.setdefault(host.get("rack", 0), []).append(host["name"])
    return ["hosts that are near each other, and how far the others are:"] + [
        f"  {', '.join(names)}: {time_text(fabric['racks'][rack]['alpha'])} more each way"
        for rack, names in sorted(hosts.items())
    ]


def silence(candidate: dict[str, Any]) -> list[str]:
    """What a candidate takes if TCP begins anew, if that is much longer, in a line."""
    seconds = candidate["seconds_after_silence"]
    if seconds < _MUCH_LONGER * candidate["seconds"]:
        return []
    return [
        f"{candidate['algorithm']} takes {time_text(seconds)} if the hosts have been silent for "
        "longer than TCP's timeout (0.2 s and a round trip), because TCP begins slowly then"
    ]


def server_tasks(algorithm: str, collective: str, fabric: str, root: int) -> list[str]:
    """What each server of ``fabric`` (JSON) does in an algorithm, in a line per server."""
    from q7x2._core.extension import load

    names = [server["name"] for server in json.loads(fabric).get("servers", [])]
    if not names:
        return []
    plans = load().make_plans(collective, algorithm, None, root, fabric)
    if len(plans) == plans[0]["world_size"]:
        return [f"server {name}: nothing" for name in names]
    weights = plans[0]["part_weights"]
    lines = []
    for name, plan in zip(names, plans[-len(names) :], strict=True):
        parts = {op["part"] for op in plan["ops"]}
        totals = {op["part"] for op in plan["ops"] if op["is_final"]}
        task = f"{_share(totals, weights)} of the data of {plan['world_size']} ranks"
        if parts != totals:
            task = f"{_share(parts, weights)} of the data of its rack and {task}"
        lines.append(f"server {name}: {f'adds up {task}' if parts else 'nothing'}")
    return lines


def _share(parts: set[int], weights: Sequence[int]) -> str:
    return f"{sum(weights[part] for part in parts) / sum(weights):.0%}"


def _show_history(options: argparse.Namespace) -> int:
    try:
        history = parse(options.history.read_text())
        kinds = [each for each in history if _is_of_kind(each, options)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"q7x2 plan explain: cannot read {options.history}: {error!r}", file=sys.stderr)
        return 1
    if not kinds:
        known = ", ".join(sorted({_title(each) for each in history})) or "none"
        print(
            f"q7x2 plan explain: {options.history} has no {options.op} of "
            f"{bytes_text(options.size)}; it has: {known}",
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
    wanted = (options.op, size_class, options.codec, fabric_arguments.root_of(options))
    return (kind["collective"], kind["bytes"], kind["codec"], kind["root"]) == wanted


def _title(kind: dict[str, Any]) -> str:
    codec = f" with {kind['codec']}" if kind["codec"] else ""
    size = "parts of any size" if kind["bytes"] is None else f"up to {bytes_text(kind['bytes'])}"
    return f"{kind['collective']} of {size}{codec}"


def print_history(kind: dict[str, Any]) -> None:
    """Print one kind of call that ``q7x2.plan.plan_history`` returned, decision by decision.

    A decision counts from a call on. Its rows are the algorithms that were measured by then or are
    chosen by it; ``*`` marks the chosen ones. Lines below the table say which rates have changed.
    """
    proposed = [*kind.get("earlier_candidates", []), kind["candidates"]]
    predicted = {each["algorithm"]: each["predicted"] for some in proposed for each in some}
    table = table_of("from call", "algorithm", "predicted", "measured", "chosen")
    for event in kind["events"]:
        first = f"from call {event['call']}"
        for name, seconds in predicted.items():
            measured = event["measured"].get(name)
            is_chosen = name in event["choices"]
            if measured is None and not is_chosen:
                continue
            table.add_row(
                first,
                name,
                time_text(seconds),
                f"{time_text(measured['seconds'])} +- {measured['noise']:.0%}" if measured else "",
                "*" if is_chosen else "",
                style="bold green" if is_chosen else None,
            )
            first = ""
    print_table(f"{_title(kind)}: {kind['calls']} calls", table)
    for change in kind.get("rate_changes", []):
        print(f"planned again from call {change['call']}: {change['reason']}")


def print_candidates(candidates: list[dict[str, Any]], title: str) -> None:
    """Print what ``q7x2._C.explain`` returned, a line per candidate, the chosen one first."""
    has_measured = any(each["measured"] is not None for each in candidates)
    has_edges = any(each["edges"] != "none" for each in candidates)
    columns = ["algorithm", "predicted"]
    columns += ["measured"] * has_measured + ["coded"] * has_edges
    table = table_of(*columns, "1st slice", "slices", "bottleneck")
    for number, each in enumerate(candidates):
        cells = [each["algorithm"], ("" if each["simulated"] else "~") + time_text(each["seconds"])]
        if has_measured:
            cells.append("" if each["measured"] is None else time_text(each["measured"]))
        if has_edges:
            coded = "" if each["edges"] == "none" else each["edges"]
            cells.append(coded + "*" * each["on_device"])
        table.add_row(
            *cells,
            time_text(each["first_slice_seconds"]),
            f"{each['window']} x {bytes_text(each['slice_bytes'])}",
            _bottleneck(each),
            style="bold green" if number == 0 else None,
        )
    print_table(title, table)
    notes = [
        "~            estimated by the cost model, not simulated",
        "coded        the edges whose messages are compressed; *: a device can do it",
        "1st slice    when the first slice of the result is complete",
        "slices       how many are in flight, and how many bytes each has",
        "bottleneck   the busiest resource, for how much of the time, and its bytes",
    ]
    print("\n".join(note for note in notes if has_edges or not note.startswith("coded")))


def edge_comparison(candidates: list[dict[str, Any]], wish: str) -> list[str]:
    """Why the first candidate of a compressed call has the edges that it has, in lines.

    A line per coding that was compared, the one that loses least first, with its fastest candidate.
    """
    from q7x2._core.extension import load

    fastest: dict[str, dict[str, Any]] = {}
    for each in sorted(candidates, key=lambda each: float(each["seconds"])):
        fastest.setdefault(each["edges"], each)
    chosen = candidates[0]["edges"]
    if len(fastest) == 1:
        return [f"edges={wish} compresses {_EDGES[chosen]}: nothing to compare"]
    lines = [f"edges={wish} compares what is compressed:"]
    for edges in (each for each in _EDGES if each in fastest):
        best = fastest[edges]
        mark = "*" if edges == chosen else " "
        what = f"{edges:<6} {time_text(best['seconds']):>8}"
        lines.append(f"{mark} {what}   by {best['algorithm']}, lossy: {_EDGES[edges]}")
    reason = "the fastest"
    if wish == "auto":
        margin = load().WORTH_MORE_LOSS - 1
        reason = f"the fewest lossy edges within {margin:.0%} of the fastest"
    return [*lines, f"* chosen: {reason}"]


def _bottleneck(candidate: dict[str, Any]) -> str:
    if candidate["bottleneck"] is None:
        return "latency"
    load = candidate["loads"][candidate["bottleneck"]]
    through = f", {bytes_text(load['bytes'])}" if load["bytes"] else ""
    return f"{load['name']} {load['busy'] / candidate['seconds']:.0%}{through}"


def table_of(*columns: str) -> Table:
    """A table without a frame. On a narrow terminal only its last column is folded."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        is_text = column in _TEXT_COLUMNS
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=column != columns[-1],
            overflow="fold",
        )
    return table


def print_table(title: str, table: Table) -> None:
    """Print a bold line, and the table below it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(table)
