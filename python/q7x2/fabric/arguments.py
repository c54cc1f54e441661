"""The command line's ways to say on which Fabric, and for which call, a Plan is looked at."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from q7x2._core.argument_types import count
from q7x2._core.units import parse_size

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
# How many hosts, ranks, racks and servers there may be, of each. The cost model looks at each host.
# Drawing, exporting and simulating make the Plans of all ranks, some with a message for each two.
MOST_RANKS = 65536
MOST_PLANS = 4096
# A second: more than any machine has.
_MOST_BITS = 1e15
ROOTED = ("reduce", "broadcast", "gather", "scatter")


def size(text: str) -> int:
    """``parse_size`` for argparse."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rate(text: str) -> float:
    """``"1gbit"`` -> 125000000 bytes a second.

    A Fabric with a rate of 0 has a link that limits nothing, so 0 is refused here.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(
            f"expected a rate above 0, such as 100mbit or 1gbit; got {text!r}"
        )
    bits = float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2]]
    if bits > _MOST_BITS:
        raise argparse.ArgumentTypeError(f"expected at most 1000000gbit, got {text!r}")
    return bits / 8


def add_arguments(parser: argparse.ArgumentParser, most: int) -> None:
    """Add the call (``--op``, ``--size``, ``--root``) and the Fabric.

    ``most``: hosts, ranks, racks and servers, of each.
    """
    parser.set_defaults(most=most)
    parser.add_argument("--op", choices=COLLECTIVES, default="all_reduce", help="the collective")
    parser.add_argument(
        "--size",
        type=size,
        required=True,
        help="bytes of the tensor, or of each part where every rank has one, such as 16M",
    )
    _add_root(parser, most)
    fabric_command = parser.add_argument_group("where", "a measured Fabric, or one made up here")
    fabric_command.add_argument(
        "--fabric", type=Path, metavar="FILE", help="hosts and links, as JSON"
    )
    fabric_command.add_argument(
        "--hosts",
        type=count(1, most),
        default=4,
        help=f"on one switch, at most {most} (default 4)",
    )
    fabric_command.add_argument(
        "--rate", type=rate, default="1gbit", help="of each NIC (default 1gbit)"
    )
    fabric_command.add_argument(
        "--racks", type=count(1, most), default=1, help="the hosts fill them in order"
    )
    fabric_command.add_argument(
        "--uplink", type=rate, help="of each rack; default: all its hosts together"
    )
    fabric_command.add_argument(
        "--ranks",
        type=count(1, most),
        help=f"spread over the hosts in order, at most {most}; default: one each",
    )
    fabric_command.add_argument(
        "--servers",
        type=count(0, most),
        default=0,
        help="aggregators, each on a host of its own (default 0)",
    )
    fabric_command.add_argument(
        "--server-rate", type=rate, help="of a server's NIC; default: --rate"
    )


def add_schedule_arguments(parser: argparse.ArgumentParser, ranks: str) -> None:
    """Add the arguments that name one Schedule; `ranks`: the help for ``--ranks``."""
    parser.add_argument("--op", choices=COLLECTIVES, default="all_reduce", help="the collective")
    parser.add_argument(
        "--algorithm",
        required=True,
        metavar="NAME",
        help='"ring", or with parameter "aggregator:2"',
    )
    parser.set_defaults(most=MOST_PLANS)
    parser.add_argument("--ranks", type=count(1, MOST_PLANS), help=ranks)
    _add_root(parser, MOST_PLANS)
    parser.add_argument("--fabric", type=Path, metavar="FILE", help="hosts and links, as JSON")


def _add_root(parser: argparse.ArgumentParser, most: int) -> None:
    parser.add_argument(
        "--root", type=count(0, most - 1), default=0, help="of rooted collectives (default 0)"
    )


def root_of(options: argparse.Namespace) -> int:
    """The root as the planner wants it: -1 where the collective has none."""
    return options.root if options.op in ROOTED else -1


def fabric_of_file(options: argparse.Namespace) -> str | None:
    """The Fabric of ``--fabric`` as JSON; None without that option.

    Raises:
        FabricError: The file cannot be read, or has no Fabric; its path is in the text.
    """
    from q7x2.fabric import files as fabric_files

    if options.fabric is None:
        return None
    read = fabric_files.read(options.fabric)
    if len(read["ranks"]) > options.most:
        raise fabric_files.FabricError(
            f"{options.fabric}: expected at most {options.most} ranks, got {len(read['ranks'])}"
        )
    return json.dumps(read)


def fabric_json(options: argparse.Namespace) -> str:
    """The Fabric that ``options`` describe.

    Raises:
        FabricError: See :func:`fabric_of_file`.
        ValueError: The options contradict each other.
    """
    text = fabric_of_file(options)
    fabric_command = _made_up(options) if text is None else json.loads(text)
    if options.servers:
        fabric_command["servers"] = _servers(options)
    if options.ranks is not None:
        fabric_command["ranks"] = _spread(options.ranks, len(fabric_command["hosts"]))
        fabric_command.pop("bindings", None)  # they belong to the ranks in the file
        ranks_on = Counter(fabric_command["ranks"])
        for host, entry in enumerate(fabric_command["hosts"]):
            if not options.fabric:
                entry["cores"] = max(ranks_on[host], 1)
    return json.dumps(fabric_command)


def _spread(ranks: int, hosts: int) -> list[int]:
    if ranks < hosts:
        raise ValueError(f"{ranks} ranks are too few for {hosts} hosts: each has at least one")
    return [rank * hosts // ranks for rank in range(ranks)]


def _servers(options: argparse.Namespace) -> list[dict[str, Any]]:
    nic = options.server_rate or options.rate
    return [
        {"name": f"s{server}", "egress": nic, "ingress": nic} for server in range(options.servers)
    ]


def _made_up(options: argparse.Namespace) -> dict[str, Any]:
    hosts, racks = options.hosts, options.racks
    if hosts % racks:
        raise ValueError(f"{hosts} hosts do not divide into {racks} racks")
    per_rack = hosts // racks
    uplink = options.uplink or per_rack * options.rate
    return {
        "q7x2_fabric": 1,
        "hosts": [
            {
                "name": f"h{host}",
                "rack": host // per_rack,
                "egress": options.rate,
                "ingress": options.rate,
            }
            for host in range(hosts)
        ],
        "racks": [{"up": uplink, "down": uplink} if racks > 1 else {} for _ in range(racks)],
        "ranks": list(range(hosts)),
    }
