"""Every collective over sizes: on this machine, or with --hosts between virtual hosts (root)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import arguments, launch, openmpi, report
from benchmarks.harness.arguments import option
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.ops import OPS
from tests.lab import LabError, unavailable
from tests.lab.cli import TOPOLOGY, topology_from
from tests.lab.command import explained
from tests.lab.topology import Topology


@explained
def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else arguments.names(text)
    if unknown := set(names) - set(OPS):
        raise ValueError(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    return names


OPTIONS = {
    "op": option(
        "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all",
        f"comma-separated, or all, of {', '.join(OPS)}",
        type=_ops,
    ),
    "sizes": option("4,1K,64K,1M,16M", "bytes, with K, M or G", type=arguments.sizes),
    "backends": option(
        "q7x2,gloo",
        "the one under test, then what it is compared with; openmpi is Open MPI's raw buffers",
        type=arguments.names,
    ),
    "blocks": option(5, "turns of each backend"),
    "block_seconds": option(0.2, "length of a turn"),
    "ranks": option("2,4", "in one job", type=arguments.rank_counts),
    "cores": option(0, "cores the ranks share; 0: all"),
    "mpirun": option(None, "the Open MPI to measure; default: the first found"),
    **TOPOLOGY,
    "hosts": option(None, "virtual hosts", type=int),
    "ranks_per_host": 1,
    "interleaved": option(False, "neighbour ranks on other hosts"),
}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    topology = topology_from(args) if args.hosts else None
    if topology:
        if problem := unavailable():
            raise LabError(problem)
        if OPENMPI in args.backends:
            raise ValueError("openmpi is measured on one host only; leave it out of --backends")
    order = ", ranks interleaved" if args.interleaved else ""
    place = f"{topology.describe()}{order}" if topology else "one host"
    body: dict[str, Any] = {"title": f"Collectives on {place}", "cells": []}
    for job in _jobs(args, topology):
        if topology:
            body |= {"topology": topology.to_json(), "placement": job.placement}
        body["cells"] += launch.run(job, lambda cell: print(f"measured {cell} B", file=sys.stderr))
        yield body
    report.print_cells(report.console(), body["title"], body["cells"], topology)


def _jobs(args: argparse.Namespace, topology: Topology | None) -> Iterator[launch.Job]:
    """One on virtual hosts; on this machine one for each number of ranks."""
    shared: dict[str, Any] = {
        "ops": args.op,
        "sizes": args.sizes,
        "backends": args.backends,
        "blocks": args.blocks,
        "block_seconds": args.block_seconds,
        "cores": args.cores,
    }
    if topology:
        placement = tuple(topology.interleaved(args.ranks_per_host)) if args.interleaved else None
        ranks = topology.hosts * args.ranks_per_host
        yield launch.Job(**shared, ranks=ranks, topology=topology, placement=placement)
        return
    if OPENMPI in args.backends:
        shared["openmpi"] = openmpi.announced(args.mpirun)
        if shared["openmpi"] is None:
            shared["backends"] = tuple(name for name in args.backends if name != OPENMPI)
    for ranks in args.ranks:
        yield launch.Job(**shared, ranks=ranks)
