"""Which algorithm is the best one where? All candidates of the Planner, on networks at random.

Networks have racks, hosts with several ranks, private links, slow pairs, servers and distant sites,
each with a chance of its own. The cost model predicts the time of every candidate for every
collective and size; nothing is sent. An algorithm is *best* if its prediction is the least one,
*needed* if those of all others are more than 5 % above it, and what its absence costs is the least
prediction of the others over its own. Variants, such as `torus:2` and `torus:4`, count as one
algorithm.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from typing import Any

from q7x2._core.extension import load
from rich.progress import track

from benchmarks.harness.arguments import chosen

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = (4, 64 << 10, 1 << 20, 64 << 20)  # bytes of the input; of a rank's part of an all-gather
NEEDED = 1.05
SAME = 1.001  # predictions that differ by less are equally good

OPTIONS = {"fabrics": 1000, "most_ranks": 24, "seed": 0}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    found = {collective: Winners(collective) for collective in COLLECTIVES}
    for number in track(range(args.fabrics), "networks"):
        fabric = json.dumps(random_fabric(random.Random(args.seed + number), args.most_ranks))
        for winners in found.values():
            for size in SIZES:
                winners.add(load().explain(winners.collective, size, fabric, 0, ""))
    rows = [row for winners in found.values() for row in winners.rows()]
    return {**chosen(args, *OPTIONS), "rows": rows}


class Winners:
    """How often each algorithm of a collective is best, and what its absence costs."""

    def __init__(self, collective: str) -> None:
        self.collective = collective
        self._cases = 0
        self._figures: dict[str, dict[str, float]] = {}

    def add(self, candidates: list[dict[str, Any]]) -> None:
        """The candidates of one call."""
        least: dict[str, float] = {}
        for candidate in candidates:
            name = candidate["algorithm"].partition(":")[0]
            least[name] = min(candidate["seconds"], least.get(name, float("inf")))
        self._cases += 1
        for name, seconds in least.items():
            others = [least[other] for other in least if other != name]
            loss = min(others) / seconds if others and seconds > 0 else 1.0
            row = self._figures.setdefault(
                name, {"candidate": 0, "best": 0, "needed": 0, "largest_loss": 1.0}
            )
            row["candidate"] += 1
            row["best"] += loss >= 1 / SAME
            row["needed"] += loss > NEEDED
            row["largest_loss"] = max(row["largest_loss"], loss)

    def rows(self) -> list[dict[str, Any]]:
        """The most often best one first."""
        ordered = sorted(self._figures.items(), key=lambda each: -each[1]["best"])
        return [
            {"collective": self.collective, "algorithm": name, "cases": self._cases, **figures}
            for name, figures in ordered
        ]


def lines(body: Mapping[str, Any]) -> list[str]:
    shown = [f"{body['fabrics']} networks of up to {body['most_ranks']} ranks, seed {body['seed']}"]
    collective = ""
    for row in body["rows"]:
        if row["collective"] != collective:
            collective = row["collective"]
            shown.append(f"{collective}, {row['cases']} calls")
        best, needed = (100 * row[name] / row["cases"] for name in ("best", "needed"))
        shown.append(
            f"  {row['algorithm']:20} best {best:5.1f} %, needed {needed:5.1f} %, "
            f"without it at most {row['largest_loss']:.2f} x"
        )
    return shown


def random_fabric(random: random.Random, most_ranks: int) -> dict[str, Any]:
    """A network as the JSON of a Fabric has it: seconds, bytes per second."""

    def rate(least: float = 1e6, most: float = 1e10) -> float:
        return float(f"{least * (most / least) ** random.random():.3g}")

    ranks = random.randint(2, most_ranks)
    hosts = max(1, ranks // random.choice((1, 1, 2, 4)))
    racks = random.choice((1, 1, 2, 3, 4)) if hosts > 3 else 1
    usual = rate(1e7)
    is_even = random.random() < 0.6
    described: list[dict[str, Any]] = []
    for host in range(hosts):
        own = usual if is_even else rate(usual / 8, usual)
        described.append({"name": f"h{host}", "rack": host % racks, "egress": own, "ingress": own})
    fabric: dict[str, Any] = {
        "q7x2_fabric": 1,
        "ranks": [rank * hosts // ranks for rank in range(ranks)],
        "hosts": described,
        "network": {"alpha": random.choice((1e-5, 3e-5, 1e-4)), "overhead": 2e-6},
        "memory": {"alpha": 1e-6, "overhead": 5e-7},
    }
    if random.random() < 0.3:
        random.shuffle(fabric["ranks"])
    alpha = random.choice((0, 0, 5e-3, 5e-2)) if racks > 1 else 0  # of racks that are far apart
    if racks > 1:
        fabric["racks"] = [
            {"name": f"r{rack}", "up": up, "down": up, "alpha": alpha}
            for rack in range(racks)
            for up in [rate(usual / 8, usual * 4)]
        ]
    pairs = [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    if pairs and alpha == 0 and random.random() < 0.25:
        fabric["links"] = [
            {"a": a, "b": b, "rate": rate(usual / 2, usual * 4), "alpha": 1e-5}
            for a, b in random.sample(pairs, random.randint(1, min(hosts, len(pairs))))
        ]
    if pairs and random.random() < 0.25:
        fabric["pairs"] = [
            {"from": source, "to": target, "rate": slow, "solo": slow}
            for a, b in random.sample(pairs, 1)
            for slow in [rate(usual / 32, usual / 4)]
            for source, target in ((a, b), (b, a))
        ]
    if random.random() < 0.2:
        fabric["servers"] = [
            {"name": f"s{server}", "rack": server % racks, "egress": usual, "ingress": usual}
            for server in range(random.randint(1, 3))
        ]
    return fabric
