"""`python -m benchmarks lab`: virtual hosts for any command.

`up`, `run`, `down` and `status` have a lab that stays up between commands. `wan` has one with
distance for one command, and `line` changes it while that runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from typing import Any

from benchmarks.harness.arguments import add_options, explained, option
from benchmarks.harness.lab import namespaces, wide_cli
from benchmarks.harness.lab.hosts import STATE, Hosts, Traffic, remove, remove_stale
from benchmarks.harness.lab.lab import Lab
from benchmarks.harness.lab.namespaces import LabError
from benchmarks.harness.lab.topology import Link, Topology
from benchmarks.harness.processes import RanksFailed

_CURRENT = STATE / "current"


TOPOLOGY = {
    "hosts": option(4, "virtual hosts"),
    "rate": option("1gbit", "of each host's NIC, as tc spells it"),
    "racks": option(1, "hosts fill the racks in order"),
    "uplink": option(None, "rate of each rack's cable to the core switch"),
    "link": option(
        [],
        "a private wire between two hosts; may be repeated",
        action="append",
        type=explained(Link.parse),
        metavar="A:B:RATE",
    ),
}


def topology_from(args: argparse.Namespace) -> Topology:
    return Topology(args.hosts, args.rate, args.racks, args.uplink, tuple(args.link))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    interleaved = {"interleaved": option(False, "neighbour ranks on other hosts")}
    for name, text, options, handler in (
        ("up", "bring a lab up; it stays until `lab down`", TOPOLOGY, _up),
        ("run", "run a command as every rank of one job", interleaved, _run),
        ("down", "take the lab down, and whatever a crash left", {}, _down),
        ("status", "the lab that is up, and its byte counters", {}, _status),
    ):
        made = commands.add_parser(name, help=text)
        add_options(made, options)
        made.set_defaults(handler=handler)
        if name == "run":
            _add_run_arguments(made)
    wide_cli.add_commands(commands, _add_run_arguments, _run_on)
    args = parser.parse_args(argv)
    args.handler(args)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, {"ranks_per_host": 1, "timeout": option(600.0, metavar="S")})
    parser.add_argument("command", nargs=argparse.REMAINDER, help="[--] PROGRAM ARGUMENTS...")


def _current() -> Lab:
    if problem := namespaces.unavailable():
        raise LabError(problem)
    try:
        name = _CURRENT.read_text()
    except FileNotFoundError:
        name = ""
    if not name or namespaces.owner(name) is None:
        raise LabError("no lab is up; start one with `python -m benchmarks lab up`")
    return Lab.attach(name)


def _up(args: argparse.Namespace) -> None:
    topology = topology_from(args)
    if _CURRENT.exists() and namespaces.owner(_CURRENT.read_text()):
        raise LabError("a lab is up already; `python -m benchmarks lab down` takes it down")
    # The lab outlives this command, so it belongs to a process that only waits to be ended.
    # It must not keep a pipe open that somebody reads this command's output from.
    null = subprocess.DEVNULL
    keeper = subprocess.Popen(
        ["sleep", "infinity"], stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    try:
        lab = Lab(topology, owner=keeper.pid)
        lab.up()
        _CURRENT.write_text(lab.name)
    except BaseException:
        keeper.kill()
        keeper.wait()
        raise
    print(f"up: {topology.describe()}")


def _run(args: argparse.Namespace) -> None:
    lab = _current()
    placement = lab.topology.interleaved(args.ranks_per_host) if args.interleaved else None
    _run_on(lab, args, placement)


def _run_on(lab: Hosts[Any], args: argparse.Namespace, placement: list[int] | None = None) -> None:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LabError("nothing to run: a command is PROGRAM ARGUMENTS...")
    lock = threading.Lock()

    def show(rank: int, line: str) -> None:
        with lock:
            sys.stdout.write(f"[{rank}] {line}")
            sys.stdout.flush()

    try:
        result = lab.run(
            command,
            ranks_per_host=args.ranks_per_host,
            placement=placement,
            timeout_s=args.timeout,
            on_line=show,
        )
    except RanksFailed as failure:
        states = ", ".join(f"{r.rank}: {r.returncode}" for r in failure.results)
        raise LabError(f"{str(failure).splitlines()[0]} (exit status by rank: {states})") from None
    _print_traffic(result.traffic)
    print(f"{result.seconds:.2f} s")


def _print_traffic(traffic: list[Traffic]) -> None:
    for host, each in enumerate(traffic):
        print(f"h{host}: sent {each.sent:,} B, received {each.received:,} B")


def _down(_: argparse.Namespace) -> None:
    if problem := namespaces.unavailable():
        raise LabError(problem)
    if _CURRENT.exists():
        name = _CURRENT.read_text()
        keeper = namespaces.owner(name)
        if keeper:
            namespaces.kill([keeper])
        remove(name)
        _CURRENT.unlink()
        print("down")
    for name in remove_stale():
        print(f"removed {name}, left by a process that is gone")


def _status(_: argparse.Namespace) -> None:
    lab = _current()
    print(f"up: {lab.topology.describe()}")
    _print_traffic(lab.traffic())
