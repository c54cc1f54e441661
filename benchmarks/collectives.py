"""`python -m benchmarks collectives` and `network`: every collective over sizes, side by side."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import facts, launch, openmpi, plots, report
from benchmarks.backends import OPENMPI
from benchmarks.lab import LabError
from benchmarks.lab import unavailable as lab_unavailable
from benchmarks.lab.cli import add_topology_arguments, topology_from
from benchmarks.ops import OPS

RESULTS = Path(__file__).parent / "results"

_DEFAULT_OPS = "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all"


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    one_host = subparsers.add_parser("collectives", help="collectives over sizes on this machine")
    _add_common(one_host, ops=_DEFAULT_OPS, sizes="4,1K,64K,1M,16M")
    one_host.add_argument("--ranks", type=_numbers, default="2,4", help="numbers of ranks")
    one_host.add_argument("--cores", type=int, default=0, help="cores the ranks share; 0: all")
    one_host.add_argument("--mpirun", help="the Open MPI to measure; default: the first found")
    one_host.set_defaults(handler=_collectives)

    network = subparsers.add_parser("network", help="the same over virtual hosts (root)")
    _add_common(network, ops="all_reduce", sizes="4,1K,64K,1M,16M")
    add_topology_arguments(network)
    network.add_argument("--ranks-per-host", type=int, default=1)
    network.add_argument("--interleaved", action="store_true", help="neighbours in other racks")
    network.set_defaults(handler=_network)


def _add_common(parser: argparse.ArgumentParser, ops: str, sizes: str) -> None:
    parser.add_argument("--op", type=_ops, default=ops, help=f"of {', '.join(OPS)}")
    parser.add_argument("--sizes", type=_sizes, default=sizes, help="bytes, with K, M or G")
    parser.add_argument(
        "--backends",
        type=_names,
        default="q7x2,gloo",
        help="the one under test, then what it is compared with; openmpi is Open MPI's raw buffers",
    )
    parser.add_argument("--blocks", type=int, default=5, help="turns of each backend")
    parser.add_argument("--block-seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--out", type=Path, help="results file; a .png is written beside it")


def _collectives(args: argparse.Namespace) -> None:
    console = report.console()
    backends, installation = args.backends, None
    if OPENMPI in backends:
        problem = openmpi.unavailable()
        if problem:
            console.print(f"[yellow]Open MPI is left out: {problem}[/yellow]")
            backends = tuple(name for name in backends if name != OPENMPI)
        else:
            installation = _installation(args.mpirun)
            console.print(f"Open MPI {installation.version} ({installation.mpirun})")
    job = launch.Job(
        ops=args.op,
        sizes=args.sizes,
        backends=backends,
        ranks=0,
        blocks=args.blocks,
        block_seconds=args.block_seconds,
        cores=args.cores,
        openmpi=installation,
    )
    _measure(
        console,
        "Collectives on one host",
        [replace(job, ranks=ranks) for ranks in args.ranks],
        args.out or RESULTS / "collectives.json",
    )


def _network(args: argparse.Namespace) -> None:
    if problem := lab_unavailable():
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
        ranks_per_host=args.ranks_per_host,
        placement=tuple(topology.interleaved()) if args.interleaved else None,
    )
    order = ", ranks interleaved" if args.interleaved else ""
    _measure(
        report.console(),
        f"Collectives on {topology.describe()}{order}",
        [job],
        args.out or RESULTS / "network.json",
    )


def _measure(console: Console, title: str, jobs: list[launch.Job], out: Path) -> None:
    machine = facts.collect()
    report.print_facts(console, machine)
    cells = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        total = sum(len(job.cases) for job in jobs)
        task = progress.add_task("starting", total=total)
        for job in jobs:
            cells += launch.run(
                job,
                lambda cell, n=job.ranks: progress.update(
                    task, advance=1, description=f"{cell} B, {n} ranks"
                ),
            )
    topology = jobs[0].topology
    report.print_cells(console, title, cells, topology)
    body = {"title": title, "cells": cells}
    if topology:
        body["topology"] = topology.to_json()
        body["placement"] = jobs[0].placement
    report.write_json(out, machine, body)
    picture = out.with_suffix(".png")
    plots.draw(picture, title, facts.describe(machine), cells)
    console.print(f"written: {out}, {picture}")


def _installation(mpirun: str | None) -> openmpi.OpenMpi:
    found = openmpi.installations()
    for each in found:
        if mpirun in (None, each.mpirun):
            return each
    raise ValueError(f"{mpirun} is not one of {', '.join(each.mpirun for each in found)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else _names(text)
    if unknown := set(names) - set(OPS):
        raise argparse.ArgumentTypeError(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(report.parse_size(part) for part in _names(text))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _names(text))
