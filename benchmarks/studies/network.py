"""`python -m benchmarks network`: every collective over sizes, between virtual hosts."""

from __future__ import annotations

import argparse

from benchmarks.harness import RESULTS, comparison, launch
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.lab import LabError, unavailable
from benchmarks.harness.lab.cli import add_topology_arguments, topology_from


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks network", description=__doc__)
    comparison.add_arguments(parser, ops="all_reduce")
    add_topology_arguments(parser)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--interleaved", action="store_true", help="neighbour ranks on other hosts")
    args = parser.parse_args(argv)

    if problem := unavailable():
        raise LabError(problem)
    if OPENMPI in args.backends:
        raise ValueError("openmpi is measured on one host only; leave it out of --backends")
    topology = topology_from(args)
    job = launch.Job(
        ops=args.op,
        sizes=args.sizes,
        backends=args.backends,
        ranks=topology.hosts * args.ranks_per_host,
        blocks=args.blocks,
        block_seconds=args.block_seconds,
        topology=topology,
        placement=tuple(topology.interleaved(args.ranks_per_host)) if args.interleaved else None,
    )
    order = ", ranks interleaved" if args.interleaved else ""
    comparison.run(
        f"Collectives on {topology.describe()}{order}",
        [job],
        args.out or RESULTS / "network.json",
    )
