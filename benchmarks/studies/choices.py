"""The Planner's choice with default settings, beside every algorithm and order of the hosts.

On each network of virtual hosts, one job all-reduces a buffer with default settings and, in turns,
with each algorithm forced (``informed``: q7x2 knows the network, and orders ranks for it). Further
jobs know nothing of the network (``Q7X2_PROBE=0``), and force each algorithm with their ranks on
the hosts in another order (``blind``). What takes more than twice the default's time at first is
not repeated. A row is met if the default takes at most 1.1 times the best of all.

The same job also compresses the buffer: between the ranks that ``edges="auto"`` chooses, and
between those that each other value of ``edges`` names. ``auto`` must take at most 1.1 times the
best of these, too.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

from benchmarks.harness import ranks, report, timing
from benchmarks.harness.arguments import option
from tests.lab import Lab, Link, Topology

GOAL = 1.1
ALGORITHMS = (
    *("direct", "recursive_doubling", "halving_doubling", "binomial_tree", "double_binary_tree"),
    *("sra", "ring", "multitree", "blink", "aggregator", "shares", "hierarchical", "torus"),
)
CODEC = "int8"
EDGES = ("auto", "all", "host", "rack", "slow")
WARM_UP = 200  # calls at most, until one algorithm is chosen: the first ones try several
CODED_WARM_UP = 15  # of each
TURNS = 5
HOPELESS = 2.0


@dataclass(frozen=True)
class Network:
    """Virtual hosts, what is shaped on them beside the topology, and the host of each rank."""

    topology: Topology
    shape: Callable[[Lab], None] = lambda _: None
    placement: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.placement or tuple(range(self.topology.hosts))


def _linked(hosts: int, *pairs: tuple[int, int]) -> Network:
    """Private links that are four times as fast as the NICs."""
    links = tuple(Link(a, b, "200mbit") for a, b in pairs)
    return Network(Topology(hosts=hosts, rate="50mbit", links=links))


def _slow_pair(lab: Lab) -> None:
    lab.set_pair_rate(0, 1, "20mbit")


def _slow_nics(lab: Lab) -> None:
    lab.set_rate(1, "50mbit")
    lab.set_rate(3, "100mbit")


_SWITCH = Topology(hosts=4, rate="200mbit")
_RACKS = Topology(hosts=4, rate="200mbit", racks=2, uplink="50mbit")
_TORUS = ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5))
NETWORKS = {
    "one switch": Network(_SWITCH),
    "two racks": Network(_RACKS, placement=(0, 2, 1, 3)),
    "slow pair": Network(_SWITCH, _slow_pair),
    "slow pair of hosts of two ranks": Network(_SWITCH, _slow_pair, (0, 0, 1, 1, 2, 2, 3, 3)),
    "private links in a ring": _linked(4, (0, 2), (2, 1), (1, 3), (3, 0)),
    "private links of some": _linked(4, (0, 2), (1, 3)),
    "unequal NICs": Network(_SWITCH, _slow_nics),
    "torus": _linked(6, *_TORUS),
}
OPTIONS = {
    "only": option(list(NETWORKS), choices=NETWORKS),
    "kib": option(512, "of the buffer"),
    "orders": option(6, "of the hosts, drawn if there are more"),
    "seed": option(0, "of the orders"),
}
KEY = itemgetter("network")


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in args.only:
        network = NETWORKS[name]
        with Lab(network.topology) as lab:
            network.shape(lab)
            yield {"network": name, "bytes": args.kib << 10, **measured(lab, network, args)}


def measured(lab: Lab, network: Network, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the default and of all others."""
    spec = {"elements": args.kib << 8, "kind": "informed"}
    informed = ranks.run(
        __name__, spec, lab=lab, placement=network.ranks, env={"Q7X2_PROBE": "force"}
    )
    blind: dict[str, float] = {}
    spec |= {"kind": "blind", "limit": HOPELESS * informed["default"]}
    env = {"Q7X2_PROBE": "0", "Q7X2_REACT": "0"}
    for order in orders(network, args):
        found = ranks.run(__name__, spec, lab=lab, placement=order, env=env)
        text = ",".join(map(str, order))
        blind |= {f"{name} {text}": seconds for name, seconds in found.items()}
    return {**informed, "blind": blind}


def orders(network: Network, args: argparse.Namespace) -> list[tuple[int, ...]]:
    """The host of each rank, for every order of the hosts or for some of them."""
    hosts = range(network.topology.hosts)
    every = list(itertools.permutations(hosts))
    if len(every) > args.orders:
        every = random.Random(args.seed).sample(every, args.orders)
    return [tuple(order[host] for host in network.ranks) for order in every]


def best(row: dict[str, Any]) -> tuple[str, float]:
    """The fastest of all but the default, by name, and its seconds."""
    every = {**row["informed"], **row["blind"]}
    name = min(every, key=every.__getitem__)
    return name, every[name]


def coded_ratio(row: dict[str, Any]) -> float:
    """The time of ``edges="auto"`` by the best of all."""
    return row["coded"]["auto"] / min(row["coded"].values())


def row_lines(row: dict[str, Any]) -> list[str]:
    name, seconds = best(row)
    ratio = row["default"] / seconds
    return [
        f"{row['network']}, {row['bytes'] >> 10} KiB: default {1e3 * row['default']:.1f} ms "
        f"({row['choice']}), best {1e3 * seconds:.1f} ms ({name}): {ratio:.2f} x, "
        f"{report.verdict(ratio <= GOAL)}",
        "  " + ", ".join(f"{key} {1e3 * each:.1f}" for key, each in row["informed"].items()),
        f"  {CODEC}: "
        + ", ".join(f"{key} {1e3 * each:.1f}" for key, each in row["coded"].items())
        + f": {coded_ratio(row):.2f} x, {report.verdict(coded_ratio(row) <= GOAL)}",
    ]


# For docs/planner_choice.md.
COLUMNS: report.Columns = (
    ("network", lambda row: row["network"]),
    ("the choice", lambda row: row["choice"]),
    ("takes", lambda row: f"{1e3 * row['default']:.0f} ms"),
    ("the best of all", lambda row: best(row)[0]),
    ("takes", lambda row: f"{1e3 * best(row)[1]:.0f} ms"),
    ("ratio", lambda row: f"{row['default'] / best(row)[1]:.2f}"),
)


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    import q7x2
    import torch
    import torch.distributed as dist

    dist.init_process_group("q7x2")
    tensor = torch.zeros(spec["elements"])

    def choice() -> list[str]:
        return list(timing.largest_all_reduces()["events"][-1]["choices"])

    def call(name: str) -> float:
        """Seconds of the slowest rank."""
        dist.barrier()
        if name in EDGES:
            took = timing.timed(lambda: q7x2.all_reduce(tensor, codec=CODEC, edges=name))
        else:
            with q7x2.collectives.algorithm(name):
                took = timing.timed(lambda: dist.all_reduce(tensor))
        return timing.largest([took])[0]

    if spec["kind"] == "informed":
        for number in range(WARM_UP):
            dist.all_reduce(tensor)
            if number % 10 == 9 and len(choice()) == 1:
                break
        limit = HOPELESS * min(call("") for _ in range(3))
    else:
        limit = spec["limit"]
    names = [name for name in ALGORITHMS if min(call(name), call(name)) <= limit]
    times: dict[str, list[float]] = {name: [] for name in ("", *names)}
    for _ in range(TURNS):
        for name, found in times.items():
            if name or spec["kind"] == "informed":
                found.append(call(name))
    seconds: dict[str, Any] = {name: median(found) for name, found in times.items() if found}
    if spec["kind"] == "informed":
        found = {"default": seconds.pop(""), "choice": " or ".join(choice()), "informed": seconds}
        for _ in range(CODED_WARM_UP):
            for name in EDGES:
                call(name)
        found["coded"] = {name: median(call(name) for _ in range(2 * TURNS)) for name in EDGES}
        seconds = found
    return seconds
