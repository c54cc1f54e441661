"""`python -m benchmarks sweep`: latency and bandwidth of an all-reduce from 4 B to 64 MiB."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import arguments, facts, launch, openmpi, report
from benchmarks.harness.backends import OPENMPI
from benchmarks.harness.comparison import RESULTS
from benchmarks.harness.lab import Topology
from benchmarks.harness.lab import unavailable as lab_unavailable
from benchmarks.harness.lab.topology import bits_per_second
from benchmarks.studies import sweep_picture

ONE_HOST, FOUR_HOSTS = "one-host", "four-hosts"
TITLES = {
    ONE_HOST: "2 ranks, one host",
    FOUR_HOSTS: "4 virtual hosts, 1 Gbit/s",
}
# Steps of four: 4 B, 16 B, ... 64 MiB.
SIZES = tuple(4 ** (k + 1) for k in range(13))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sweep", description=__doc__)
    parser.add_argument(
        "--parts",
        type=arguments.names,
        default=tuple(TITLES),
        help=f"comma-separated, of {', '.join(TITLES)}; other parts of --out stay as they are",
    )
    parser.add_argument("--sizes", type=arguments.sizes, default=SIZES, help="bytes, with K, M, G")
    parser.add_argument("--blocks", type=int, default=7, help="turns of each backend")
    parser.add_argument("--block-seconds", type=float, default=0.1, help="length of a turn")
    parser.add_argument("--out", type=Path, default=RESULTS / "sweep.json")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(TITLES):
        raise ValueError(f"no part {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")

    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    for name in args.parts:
        if name == FOUR_HOSTS and (problem := lab_unavailable()):
            console.print(f"[yellow]{name}: not measured: {problem}[/yellow]")
            continue
        job = _job(console, name, args)
        with console.status(name):
            cells = launch.run(job, lambda cell: console.print(f"measured {cell} B", style="dim"))
        report.print_cells(console, TITLES[name], cells, job.topology)
        # After each part: a run that is stopped keeps what it has measured.
        rate = bits_per_second(job.topology.rate) / 8 if job.topology else None
        part = {"name": name, "machine": machine, "link_bytes_per_second": rate, "cells": cells}
        _keep(args.out, machine, part)
    if not args.out.exists():
        return
    picture = args.out.with_suffix(".png")
    sweep_picture.draw(picture, json.loads(args.out.read_text())["parts"], TITLES)
    console.print(f"written: {args.out}, {picture}")


def _job(console: Console, name: str, args: argparse.Namespace) -> launch.Job:
    backends: tuple[str, ...] = ("q7x2", "gloo")
    installation = None
    if name == ONE_HOST:
        if problem := openmpi.unavailable():
            console.print(f"[yellow]Open MPI is left out: {problem}[/yellow]")
        else:
            installation = openmpi.installations()[0]
            backends = (*backends, OPENMPI)
            console.print(f"Open MPI {installation.version} ({installation.mpirun})")
    return launch.Job(
        ops=("all_reduce",),
        sizes=args.sizes,
        backends=backends,
        ranks=2 if name == ONE_HOST else 4,
        blocks=args.blocks,
        block_seconds=args.block_seconds,
        topology=None if name == ONE_HOST else Topology(hosts=4, rate="1gbit"),
        openmpi=installation,
    )


def _keep(file: Path, machine: dict[str, Any], part: dict[str, Any]) -> None:
    """Writes `part` into `file`, in which the other parts stay."""
    parts = {part["name"]: part}
    if file.exists():
        kept = json.loads(file.read_text())["parts"]
        parts = {each["name"]: each for each in kept} | parts
    report.write_json(file, machine, {"parts": [parts[name] for name in TITLES if name in parts]})
