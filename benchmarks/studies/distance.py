"""What distance does to an all-reduce: q7x2 beside Gloo, between two sites of virtual hosts.

For each round-trip time and each share of lost packets there is one job with one rank per host.
Both backends reduce the same tensors in the same processes, in turns. The lines between the sites
have the rate `--rate`; TCP's congestion control is `cubic` on all hosts. The time of a call is that
of the slowest rank; figures are medians over the rounds. It needs root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness import arguments, report, study
from benchmarks.harness.lab import Line, WideLab, WideTopology
from benchmarks.harness.lab.wide_cli import sites

OURS, GLOO = "q7x2", "gloo"


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--hosts", type=sites, default=(2, 1), metavar="SITESxHOSTS")
    parser.add_argument("--rate", default="200mbit", help="of the lines between the sites")
    parser.add_argument("--rtts", type=arguments.names, default="0.1ms,20ms,100ms")
    parser.add_argument("--losses", type=arguments.names, default="0%,0.1%", help="on each way")
    parser.add_argument("--sizes", type=arguments.sizes, default="4,64K,1M,8M", help="bytes")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each backend")
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    args = parser.parse_args(argv)
    lines_of = [Line(args.rate, rtt, loss=loss) for rtt, loss in product(args.rtts, args.losses)]
    spec = study.chosen(args, "sizes", "rounds")
    topology = WideTopology(*args.hosts, line=lines_of[0], seed=args.seed)
    with WideLab(topology) as lab:
        rows = (_row(lab, line, spec) for line in lines_of)
        study.publish_rows(args.out, rows, lines)


def _row(lab: WideLab, line: Line, spec: dict[str, Any]) -> dict[str, Any]:
    lab.line.change(**asdict(line))
    before = lab.line.counts()
    sizes_found = study.run(__name__, spec, lab=lab)
    after = lab.line.counts()
    packets = {
        name: sum(getattr(after[way], name) - getattr(before[way], name) for way in after)
        for name in ("entered", "lost", "overflowed")
    }
    return {
        "line": asdict(line),
        "topology": lab.topology.describe(),
        "packets": packets,
        "load_average": os.getloadavg()[0],
        "sizes": sizes_found,
    }


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    return [text for row in body["rows"] for text in _lines(row)]


def _lines(row: dict[str, Any]) -> Iterator[str]:
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


# ---- one rank -----------------------------------------------------------------------------------


def rank_main(spec: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the figures of each size on rank 0."""
    dist.init_process_group(GLOO)
    groups = {name: dist.new_group(backend=name) for name in (OURS, GLOO)}
    calls = {name: partial(dist.all_reduce, group=group) for name, group in groups.items()}
    found = []
    for size in spec["sizes"]:
        given = torch.arange(size // 4) % 1000 + float(dist.get_rank())
        ways, results = study.in_turns(calls, spec["rounds"], lambda _, given=given: given.clone())
        for name, result in results.items():
            if not torch.equal(result, results[GLOO]):
                raise ValueError(f"{name} has another sum of {size} bytes than {GLOO}")
        found.append({"size": size, "ways": ways})
    return found if dist.get_rank() == 0 else None
