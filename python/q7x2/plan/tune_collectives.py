"""``q7x2 tune``: measure the best candidates on real ranks, and keep their times."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from q7x2._core.argument_types import count
from q7x2._core.units import bytes_text, time_text
from q7x2.fabric import arguments as fabric_arguments
from q7x2.plan.explain import print_table, table_of
from q7x2.plan.tuning import Measurement, tune
from q7x2.plan.tuning_request import COLLECTIVES, SIZES


def add_parser(commands: Any) -> None:
    """Add ``tune`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "tune",
        help="under torchrun: measure algorithms, and keep the times",
        description="Measures the best candidates of the planner on all ranks of a torchrun. The "
        "times go into the catalogue, where later jobs on the same hosts find them.",
        epilog="for example: torchrun --nproc-per-node 4 -m q7x2 tune --op all_reduce all_gather "
        "--sizes 64K 16M",
    )
    parser.add_argument(
        "--op",
        nargs="+",
        choices=COLLECTIVES,
        default=["all_reduce"],
        metavar="COLLECTIVE",
        help=f"of {', '.join(COLLECTIVES)} (all_reduce)",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=fabric_arguments.size,
        default=list(SIZES),
        metavar="SIZE",
        help=f"bytes of the tensor, or of each part where every rank has one ({' '.join(SIZES)})",
    )
    parser.add_argument(
        "--candidates",
        type=count(1, 1000),
        default=4,
        help="algorithms to measure, at most 1000 (%(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for each collective and size (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the Fabric here as well")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import torch.distributed as dist

    if "RANK" not in os.environ:
        print(
            "q7x2 tune: expected to be started on every rank by torchrun: "
            "torchrun --nproc-per-node 4 -m q7x2 tune",
            file=sys.stderr,
        )
        return 1
    dist.init_process_group("q7x2")
    try:
        rank = dist.get_rank()
        results = tune(
            collectives=options.op,
            sizes=options.sizes,
            candidates=options.candidates,
            seconds=options.seconds,
            out=options.out,
        )
    except (RuntimeError, ValueError) as error:
        if rank == 0:
            print(f"q7x2 tune: {error}", file=sys.stderr)
        return 1
    finally:
        dist.destroy_process_group()
    if rank == 0:
        if options.json:
            print(json.dumps([dataclasses.asdict(each) for each in results], indent=2))
        else:
            print_measurements(results)
    return 0


def print_measurements(results: list[Measurement]) -> None:
    """Print one line per measurement; ``*`` marks the algorithm that is chosen for the call."""
    table = table_of("collective", "size", "algorithm", "predicted", "measured", "chosen")
    for each in results:
        table.add_row(
            each.collective,
            bytes_text(each.bytes),
            each.algorithm,
            time_text(each.predicted),
            time_text(each.measured),
            "*" if each.chosen else "",
            style="bold green" if each.chosen else None,
        )
    print_table("measured on these ranks", table)
