"""What NAT costs an all-reduce between two hosts at distant sites, with and without a relay.

Four sites have a host each; sites 1 and 2 are behind a masquerade. Three jobs of two ranks take
turns: of hosts without NAT (0 and 3), with NAT before one of them (0 and 1), and with NAT before
both (1 and 2), which meet at a relay on host 0. Each job makes `--calls` calls of each size, after
two that do not count. The time of a call is that of the slowest rank; figures are medians over the
turns of the medians of the calls. It needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, arguments, ranks, report
from benchmarks.harness.arguments import option
from tests.lab import Line, WideLab, WideTopology

DIRECT, ONE, BOTH = "none", "before one host", "before both, with a relay"
HOSTS = {DIRECT: (0, 3), ONE: (0, 1), BOTH: (1, 2)}
HIDDEN = (1, 2)
RELAY_PORT, STORE_PORT = 29600, 29601
GOAL = 1 / 0.95  # of NAT before one host, in times of none
WARM_UP = 2

OPTIONS = {
    "rate": option("200mbit", "of the lines between the sites"),
    "rtt": option("20ms"),
    "sizes": option("64K,16M", "bytes", type=arguments.sizes),
    "calls": option(8, "of each size in a turn"),
    "turns": option(5, "of each job"),
    "seed": option(1, "of the lines"),
}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each size, by way the medians of the turns."""
    line = Line(rate=args.rate, rtt=args.rtt)
    topology = WideTopology(sites=4, line=line, nat=HIDDEN, seed=args.seed)
    seconds: dict[str, list[list[float]]] = {way: [] for way in HOSTS}
    with WideLab(topology) as lab:
        for _ in range(args.turns):
            for way, hosts in HOSTS.items():
                spec = {
                    "sizes": args.sizes,
                    "calls": args.calls,
                    "hosts": hosts,
                    "relay": lab.topology.address(0) if way == BOTH else "",
                }
                with relay(lab) if way == BOTH else nullcontext():
                    seconds[way].append(ranks.run(__name__, spec, lab=lab))
    for number, size in enumerate(args.sizes):
        yield {
            "size": size,
            "topology": topology.describe(),
            "load_average": os.getloadavg()[0],
            "seconds": {way: median(turn[number] for turn in seconds[way]) for way in HOSTS},
        }


@contextmanager
def relay(lab: WideLab) -> Iterator[None]:
    command = ["serve", "--relay", str(RELAY_PORT), "--store", str(STORE_PORT)]
    process = subprocess.Popen(
        [*lab.enter(0), sys.executable, "-m", "q7x2", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        while "relays at" not in (line := process.stdout.readline()):
            if not line:
                raise RuntimeError("the relay did not start")
        yield
    finally:
        process.kill()
        process.wait()


def ratio(row: dict[str, Any], way: str) -> float:
    seconds: dict[str, float] = row["seconds"]
    return seconds[way] / seconds[DIRECT]


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{report.size(row['size'])}: {row['topology']}, load average {row['load_average']:.1f}"
    for way, seconds in row["seconds"].items():
        text = f"  NAT {way}: {report.duration(seconds)}, {ratio(row, way):.2f} x"
        yield text + (f", {report.verdict(ratio(row, way) <= GOAL)}" if way == ONE else "")


# For docs/nat.md.
COLUMNS: report.Columns = (
    ("size", lambda row: report.size(row["size"])),
    ("no NAT", lambda row: report.duration(row["seconds"][DIRECT])),
    ("NAT before one host", lambda row: report.duration(row["seconds"][ONE])),
    ("NAT before both, with a relay", lambda row: report.duration(row["seconds"][BOTH])),
)


def rank_main(spec: dict[str, Any]) -> list[float] | None:
    """The median of the calls of each size. Ranks of other hosts have nothing to do."""
    host = int(os.environ["RANK"])
    if host not in spec["hosts"]:
        return None
    os.environ |= {"RANK": str(spec["hosts"].index(host)), "WORLD_SIZE": "2"}
    if host in HIDDEN:
        os.environ["Q7X2_ADVERTISE"] = "none"
    if spec["relay"]:
        os.environ |= {
            "Q7X2_RELAY": f"{spec['relay']}:{RELAY_PORT}",
            "MASTER_ADDR": spec["relay"],
            "MASTER_PORT": str(STORE_PORT),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    import torch
    import torch.distributed as dist

    from benchmarks.harness import timing

    dist.init_process_group("q7x2")
    found = []
    for size in spec["sizes"]:
        tensor = torch.zeros(size // 4)
        calls = [
            timing.timed(lambda tensor=tensor: dist.all_reduce(tensor))
            for _ in range(WARM_UP + spec["calls"])
        ]
        slowest = torch.tensor(calls[WARM_UP:])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found.append(float(slowest.median()))
    dist.destroy_process_group()
    return found
