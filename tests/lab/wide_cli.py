"""`lab wan` runs a command between distant sites; `lab line` changes their lines meanwhile."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tests.lab import namespaces
from tests.lab.command import explained
from tests.lab.hosts import STATE
from tests.lab.namespaces import LabError
from tests.lab.wide import WideLab, WideTopology, wire_socket
from tests.lab.wire import Counts, Line, Wire

_LINE = {
    "rate": "of a line between two sites, as tc spells it, or unshaped",
    "rtt": "to the other site and back",
    "jitter": "each packet takes up to this much longer, on each way",
    "loss": "share of packets lost, on each way",
    "flow-rate": "rate of each flow, or unshaped",
    "queue": "a packet that would wait longer is dropped",
    "reorder": "share of packets that later ones overtake",
    "duplicate": "share of packets that arrive twice",
}
# Runs a command on the hosts of a lab: (lab, arguments).
Run = Callable[[Any, argparse.Namespace], None]


@explained
def sites(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError(
            f"expected SITESxHOSTS, such as 2x3 for 3 hosts at each of 2; got {text!r}"
        )
    return int(match[1]), int(match[2])


@explained
def _between(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise ValueError(f"expected two sites, such as 0:1; got {text!r}")
    return int(match[1]), int(match[2])


def add_commands(commands: Any, add_run_arguments: Callable[..., None], run: Run) -> None:
    """Adds `wan` and `line`; `run` is what `lab run` does with a lab that is up."""
    wan = commands.add_parser("wan", help="run a command as every rank, between distant sites")
    wan.add_argument("--hosts", type=sites, default=(2, 1), metavar="SITESxHOSTS")
    _add_line_arguments(wan)
    wan.add_argument("--near", default="1gbit", help="rate of each host's NIC")
    wan.add_argument("--congestion", default="cubic", help="TCP's congestion control")
    wan.add_argument("--ipv6", action="store_true", help="addresses of IPv6 alone")
    nat = {"type": int, "action": "append", "default": [], "metavar": "SITE"}
    wan.add_argument("--nat", **nat, help="its hosts are behind a masquerade; may be repeated")
    wan.add_argument("--seed", type=int, help="of losses, jitter, reordering; default: drawn")
    add_run_arguments(wan)
    wan.set_defaults(handler=lambda args: _wan(args, run))

    line = commands.add_parser("line", help="change lines of the `lab wan` that runs, or count")
    line.add_argument("--lab", help="its name, if several run")
    line.add_argument("--between", type=_between, metavar="A:B", help="default: all sites")
    line.add_argument("--one-way", action="store_true", help="only from A to B")
    actions = line.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, text in (
        ("cut", "nothing passes"),
        ("heal", "end of cuts and flaps"),
        ("counts", "packets so far"),
    ):
        actions.add_parser(name, help=text)
    flap = actions.add_parser("flap", help="works for UP, passes nothing for DOWN, and so on")
    flap.add_argument("up")
    flap.add_argument("down")
    _add_line_arguments(actions.add_parser("change", help="another rate, loss, ..."))
    line.set_defaults(handler=_line)


def _add_line_arguments(parser: argparse.ArgumentParser) -> None:
    for name, text in _LINE.items():
        parser.add_argument(f"--{name}", help=text)


def _values(args: argparse.Namespace) -> dict[str, str]:
    """The attributes of Line that were given."""
    given = {each.name: getattr(args, each.name) for each in fields(Line)}
    return {name: value for name, value in given.items() if value is not None}


def _wan(args: argparse.Namespace, run: Run) -> None:
    sites, hosts = args.hosts
    seed = {} if args.seed is None else {"seed": args.seed}
    topology = WideTopology(
        *(sites, hosts, Line(**_values(args)), args.near, args.congestion, args.ipv6),
        nat=tuple(args.nat),
        **seed,
    )
    with WideLab(topology) as lab:
        print(f"{lab.name}: {topology.describe()}", flush=True)
        try:
            run(lab, args)
        finally:
            _print_counts(lab.line.counts())


def _line(args: argparse.Namespace) -> None:
    running = [path.stem for path in STATE.glob("*.wire") if namespaces.owner(path.stem)]
    if args.lab is not None:
        running = [name for name in running if name == args.lab]
    if len(running) != 1:
        raise LabError(
            "no such `lab wan` runs" if not running else f"choose one with --lab: {running}"
        )
    line = Wire(wire_socket(running[0]))
    where: dict[str, Any] = {"sites": args.between, "one_way": args.one_way}
    if args.action == "cut":
        line.cut(**where)
    elif args.action == "heal":
        line.heal(**where)
    elif args.action == "flap":
        line.flap(args.up, args.down, **where)
    elif args.action == "change":
        line.change(**where, **_values(args))
    else:
        _print_counts(line.counts())


def _print_counts(counts: dict[tuple[int, int], Counts]) -> None:
    for (a, b), line in counts.items():
        happened = {each.name: getattr(line, each.name) for each in fields(Counts)}
        shown = {name: n for name, n in happened.items() if n or name in ("entered", "delivered")}
        text = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in shown.items())
        print(f"site {a} to {b}: {text}")
