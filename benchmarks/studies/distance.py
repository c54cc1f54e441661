"""What distance does to an all-reduce: q7x2 beside Gloo, between two sites of virtual hosts.

For each round-trip time and each share of lost packets there is one job with one rank per host.
Both backends reduce the same tensors in the same processes, in turns. The lines between the sites
have the rate `--rate`; TCP's congestion control is `cubic` on all hosts. The time of a call is that
of the slowest rank; figures are medians over the rounds. It needs root.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness import arguments, ranks, report, timing
from benchmarks.harness.arguments import chosen, option
from tests.lab import Line, WideLab, WideTopology
from tests.lab.wide_cli import sites

OURS, GLOO = "q7x2", "gloo"

OPTIONS = {
    "hosts": option((2, 1), type=sites, metavar="SITESxHOSTS"),
    "rate": option("200mbit", "of the lines between the sites"),
    "rtts": option("0.1ms,20ms,100ms", type=arguments.names),
    "losses": option("0%,0.1%", "on each way", type=arguments.names),
    "sizes": option("4,64K,1M,8M", "bytes", type=arguments.sizes),
    "rounds": option(5, "turns of each backend"),
    "seed": option(1, "of the losses"),
}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of each line; `packets` are those of all lines."""
    every = [Line(args.rate, rtt, loss=loss) for rtt, loss in product(args.rtts, args.losses)]
    topology = WideTopology(*args.hosts, line=every[0], seed=args.seed)
    with WideLab(topology) as lab:
        for line in every:
            lab.line.change(**asdict(line))
            before = lab.line.counts()
            found = ranks.run(__name__, chosen(args, "sizes", "rounds"), lab=lab)
            after = lab.line.counts()
            packets = {
                name: sum(getattr(after[way], name) - getattr(before[way], name) for way in after)
                for name in ("entered", "lost", "overflowed")
            }
            yield {
                "line": asdict(line),
                "topology": topology.describe(),
                "packets": packets,
                "load_average": os.getloadavg()[0],
                "sizes": found,
            }


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    packets = row["packets"]
    yield (
        f"RTT {row['line']['rtt']}, loss {row['line']['loss']}: {packets['lost']:,} of "
        f"{packets['entered']:,} packets lost; load average {row['load_average']:.1f}"
    )
    for each in row["sizes"]:
        ours, gloo = each["ways"][OURS], each["ways"][GLOO]
        yield (
            f"  {report.size(each['size']):>7}: q7x2 {_cost(ours)}, Gloo {_cost(gloo)}, "
            f"{gloo['seconds'] / ours['seconds']:.2g} x"
        )


def _cost(way: dict[str, Any]) -> str:
    return f"{report.duration(way['seconds'])} (CPU {report.duration(way['cpu_seconds'])})"


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the figures of each size."""
    dist.init_process_group(GLOO)
    groups = {name: dist.new_group(backend=name) for name in (OURS, GLOO)}
    calls = {name: partial(dist.all_reduce, group=group) for name, group in groups.items()}
    found = []
    for size in spec["sizes"]:
        given = torch.arange(size // 4) % 1000 + float(dist.get_rank())
        ways, results = timing.in_turns(calls, spec["rounds"], lambda _, given=given: given.clone())
        for name, result in results.items():
            if not torch.equal(result, results[GLOO]):
                raise ValueError(f"{name} has another sum of {size} bytes than {GLOO}")
        found.append({"size": size, "ways": ways})
    return found
