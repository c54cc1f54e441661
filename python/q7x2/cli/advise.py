"""``q7x2 advise``: measure a training and its network, and propose how to communicate."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from q7x2._core.argument_types import count, finite
from q7x2.optim.advising import advise


def add_parser(commands: Any) -> None:
    """Add ``advise`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "advise",
        help="under torchrun: propose hook, buckets and cadence for a training",
        description="Measures a training's computing and communication on all ranks of a "
        "torchrun, predicts the time of a step with each hook and size of bucket, and tries the "
        "best ones.",
        epilog="for example: torchrun --nproc-per-node 4 -m q7x2 advise train:setup, where setup() "
        "returns (model, step), and step(model) runs one forward and backward",
    )
    parser.add_argument("setup", metavar="MODULE:FUNCTION", help="returns (model, step)")
    parser.add_argument("--backend", default="q7x2", help="of the process group (%(default)s)")
    parser.add_argument(
        "--repeats",
        type=count(1, 1000),
        default=3,
        help="measured steps of each kind, at most 1000 (%(default)s)",
    )
    parser.add_argument(
        "--trials",
        type=count(1, 1000),
        default=4,
        help="proposals to try in real steps, at most 1000 (%(default)s)",
    )
    parser.add_argument(
        "--overhead",
        type=finite,
        default=0.1,
        help="the share of the computing time that communication may cost with the proposed "
        "accumulation (%(default)s)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import torch.distributed as dist

    if "RANK" not in os.environ:
        print("q7x2 advise runs on all ranks of a job: start it with torchrun", file=sys.stderr)
        return 1
    module, _, function = options.setup.partition(":")
    if not function:
        print(f"expected MODULE:FUNCTION, got {options.setup!r}", file=sys.stderr)
        return 1
    sys.path.insert(0, str(Path.cwd()))
    setup = getattr(importlib.import_module(module), function, None)
    if setup is None:
        print(f"module {module} has no function {function!r}", file=sys.stderr)
        return 1
    dist.init_process_group(options.backend)
    try:
        model, step = setup()
        advice = advise(
            model,
            step,
            repeats=options.repeats,
            trials=options.trials,
            overhead=options.overhead,
        )
        if dist.get_rank() == 0:
            print(advice)
    except ValueError as error:
        print(f"q7x2 advise: {error}", file=sys.stderr)
        return 1
    finally:
        dist.destroy_process_group()
    return 0
