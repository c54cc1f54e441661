"""Every collective over sizes: on this machine, or with --hosts between virtual hosts (root)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import arguments, facts, launch, openmpi, report, study
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.lab import LabError, Topology, unavailable
from benchmarks.harness.lab.cli import add_topology_arguments, topology_from
from benchmarks.harness.ops import OPS


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument(
        "--op",
        type=_ops,
        default="all_reduce,broadcast,all_gather,reduce_scatter,all_to_all",
        help=f"comma-separated, or all, of {', '.join(OPS)}",
    )
    parser.add_argument(
        "--sizes", type=arguments.sizes, default="4,1K,64K,1M,16M", help="bytes, with K, M or G"
    )
    parser.add_argument(
        "--backends",
        type=arguments.names,
        default="q7x2,gloo",
        help="the one under test, then what it is compared with; openmpi is Open MPI's raw buffers",
    )
    parser.add_argument("--blocks", type=int, default=5, help="turns of each backend")
    parser.add_argument("--block-seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--ranks", type=arguments.rank_counts, default="2,4", help="in one job")
    parser.add_argument("--cores", type=int, default=0, help="cores the ranks share; 0: all")
    parser.add_argument("--mpirun", help="the Open MPI to measure; default: the first found")
    add_topology_arguments(parser, hosts=None)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--interleaved", action="store_true", help="neighbour ranks on other hosts")
    args = parser.parse_args(argv)

    topology = topology_from(args) if args.hosts else None
    if topology:
        if problem := unavailable():
            raise LabError(problem)
        if OPENMPI in args.backends:
            raise ValueError("openmpi is measured on one host only; leave it out of --backends")
    jobs = list(_jobs(args, topology))
    order = ", ranks interleaved" if args.interleaved else ""
    title = (
        f"Collectives on {topology.describe()}{order}" if topology else "Collectives on one host"
    )
    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    cells = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=sum(len(job.cases) for job in jobs))
        for job in jobs:
            cells += launch.run(
                job, lambda cell: progress.update(task, advance=1, description=f"{cell} B")
            )
    report.print_cells(console, title, cells, topology)
    body: dict[str, Any] = {"title": title, "cells": cells}
    if topology:
        body |= {"topology": topology.to_json(), "placement": jobs[0].placement}
    report.write_json(args.out, machine, body)
    console.print(f"written: {args.out}")


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
        if problem := openmpi.unavailable():
            print(f"Open MPI is left out: {problem}", file=sys.stderr)
            shared["backends"] = tuple(name for name in args.backends if name != OPENMPI)
        else:
            shared["openmpi"] = _installation(args.mpirun)
            print(f"Open MPI {shared['openmpi'].version} ({shared['openmpi'].mpirun})")
    for ranks in args.ranks:
        yield launch.Job(**shared, ranks=ranks)


def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else arguments.names(text)
    if unknown := set(names) - set(OPS):
        raise argparse.ArgumentTypeError(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    return names


def _installation(mpirun: str | None) -> openmpi.OpenMpi:
    found = openmpi.installations()
    for each in found:
        if mpirun in (None, each.mpirun):
            return each
    raise ValueError(f"{mpirun} is not one of {', '.join(each.mpirun for each in found)}")
