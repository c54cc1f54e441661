"""`python -m benchmarks collectives`: every collective over sizes, on this machine."""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness import RESULTS, arguments, comparison, launch, openmpi
from benchmarks.harness.backends import OPENMPI


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks collectives", description=__doc__)
    comparison.add_arguments(
        parser, ops="all_reduce,broadcast,all_gather,reduce_scatter,all_to_all"
    )
    parser.add_argument("--ranks", type=arguments.rank_counts, default="2,4", help="in one job")
    parser.add_argument("--cores", type=int, default=0, help="cores the ranks share; 0: all")
    parser.add_argument("--mpirun", help="the Open MPI to measure; default: the first found")
    args = parser.parse_args(argv)

    backends, installation = args.backends, None
    if OPENMPI in backends:
        problem = openmpi.unavailable()
        if problem:
            print(f"Open MPI is left out: {problem}", file=sys.stderr)
            backends = tuple(name for name in backends if name != OPENMPI)
        else:
            installation = _installation(args.mpirun)
            print(f"Open MPI {installation.version} ({installation.mpirun})")
    jobs = [
        launch.Job(
            ops=args.op,
            sizes=args.sizes,
            backends=backends,
            ranks=ranks,
            blocks=args.blocks,
            block_seconds=args.block_seconds,
            cores=args.cores,
            openmpi=installation,
        )
        for ranks in args.ranks
    ]
    comparison.run("Collectives on one host", jobs, args.out or RESULTS / "collectives.json")


def _installation(mpirun: str | None) -> openmpi.OpenMpi:
    found = openmpi.installations()
    for each in found:
        if mpirun in (None, each.mpirun):
            return each
    raise ValueError(f"{mpirun} is not one of {', '.join(each.mpirun for each in found)}")
