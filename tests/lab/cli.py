"""`python -m tests.lab`: virtual hosts for any command.

`up`, `run`, `down` and `status` have a lab that stays up between commands. `wan` has one with
distance for one command, and `line` changes it while that runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.lab import namespaces, wide_cli
from tests.lab.command import explained
from tests.lab.hosts import STATE, Hosts, Traffic, remove, remove_stale
from tests.lab.lab import Lab
from tests.lab.namespaces import LabError
from tests.lab.processes import RanksFailed
from tests.lab.topology import Link, Topology

_CURRENT = STATE / "current"


# The options that `topology_from` reads, as argparse has them.
TOPOLOGY: dict[str, dict[str, Any]] = {
    "hosts": {"type": int, "default": 4, "help": "virtual hosts"},
    "rate": {"default": "1gbit", "help": "of each host's NIC, as tc spells it"},
    "racks": {"type": int, "default": 1, "help": "hosts fill the racks in order"},
    "uplink": {"default": None, "help": "rate of each rack's cable to the core switch"},
    "link": {
        "type": explained(Link.parse),
        "action": "append",
        "default": [],
        "metavar": "A:B:RATE",
        "help": "a private wire between two hosts; may be repeated",
    },
}


def topology_from(args: argparse.Namespace) -> Topology:
    return Topology(args.hosts, args.rate, args.racks, args.uplink, tuple(args.link))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, handler: Callable[..., None], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text)
        made.set_defaults(handler=handler)
        return made

    up = add("up", _up, "bring a lab up; it stays until `lab down`")
    for name, given in TOPOLOGY.items():
        up.add_argument(f"--{name}", **given)
    run = add("run", _run, "run a command as every rank of one job")
    run.add_argument("--interleaved", action="store_true", help="neighbour ranks on other hosts")
    _add_run_arguments(run)
    add("down", _down, "take the lab down, and whatever a crash left")
    add("status", _status, "the lab that is up, and its byte counters")
    wide_cli.add_commands(commands, _add_run_arguments, _run_on)
    args = parser.parse_args(argv)
    args.handler(args)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="[--] PROGRAM ARGUMENTS...")


def _current() -> Lab:
    if problem := namespaces.unavailable():
        raise LabError(problem)
    try:
        name = _CURRENT.read_text()
    except FileNotFoundError:
        name = ""
    if not name or namespaces.owner(name) is None:
        raise LabError("no lab is up; start one with `python -m tests.lab up`")
    return Lab.attach(name)


def _up(args: argparse.Namespace) -> None:
    topology = topology_from(args)
    if _CURRENT.exists() and namespaces.owner(_CURRENT.read_text()):
        raise LabError("a lab is up already; `python -m tests.lab down` takes it down")
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
