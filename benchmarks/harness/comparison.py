"""What `collectives` and `network` share: their arguments, the run and its table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import arguments, facts, launch, report
from benchmarks.harness.ops import OPS


def add_arguments(parser: argparse.ArgumentParser, ops: str) -> None:
    parser.add_argument(
        "--op", type=_ops, default=ops, help=f"comma-separated, or all, of {', '.join(OPS)}"
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
    parser.add_argument("--out", type=Path, help="results file")


def run(title: str, jobs: list[launch.Job], out: Path) -> None:
    """Measures the jobs, which differ in their ranks only, prints and writes the results."""
    console = report.console()
    machine = facts.collect()
    report.print_facts(console, machine)
    cells = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        total = sum(len(job.cases) for job in jobs)
        task = progress.add_task("starting", total=total)
        for job in jobs:
            cells += launch.run(
                job, lambda cell: progress.update(task, advance=1, description=f"{cell} B")
            )
    topology = jobs[0].topology
    report.print_cells(console, title, cells, topology)
    body: dict[str, Any] = {"title": title, "cells": cells}
    if topology:
        body["topology"] = topology.to_json()
        body["placement"] = jobs[0].placement
    report.write_json(out, machine, body)
    console.print(f"written: {out}")


def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else arguments.names(text)
    if unknown := set(names) - set(OPS):
        raise argparse.ArgumentTypeError(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    return names
