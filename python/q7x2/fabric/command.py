"""``q7x2 fabric``: measure the hosts and the network between them, and show what was found."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from q7x2._core.argument_types import count
from q7x2.fabric.files import FabricError, load, newest, read


def add_parser(commands: Any) -> None:
    """Add ``fabric`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "fabric", help="measure hosts and network, or show what was measured"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    probe = actions.add_parser(
        "probe",
        help="measure: under torchrun all its ranks, otherwise a few ranks on this host",
        description="Measures the hosts and the network between all ranks of a torchrun, or, "
        "started alone, between some ranks on this host, and keeps the result in the catalogue.",
    )
    probe.add_argument(
        "--pairs", action="store_true", help="also every two hosts alone, whatever their number"
    )
    probe.add_argument(
        "--ranks",
        type=count(1, 1024),
        default=2,
        help="on this host, without torchrun, at most 1024 (%(default)s)",
    )
    probe.add_argument("--json", action="store_true", help="print JSON instead of a report")
    probe.add_argument("--out", type=Path, metavar="FILE", help="write the JSON here as well")
    probe.add_argument("--init-method", default="env://", help=argparse.SUPPRESS)
    probe.set_defaults(run=_probe)

    show = actions.add_parser("show", help="print a fabric as a tree and a table, or draw it")
    show.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="JSON (the newest of the catalogue)"
    )
    output = show.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print its JSON instead of a report")
    output.add_argument("--out", type=Path, metavar="PICTURE", help="draw it: a .svg or .png file")
    show.set_defaults(run=_show)


def measure(*, pairs: bool = False, init_method: str = "env://") -> tuple[int, str]:
    """Make a process group of all ranks, measure, and leave: this rank, and the Fabric as JSON."""
    import torch
    import torch.distributed as dist

    os.environ.pop("Q7X2_FABRIC", None)  # measured, not read
    os.environ["Q7X2_PROBE"] = "pairs" if pairs else "force"
    dist.init_process_group(
        "q7x2",
        init_method=init_method,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )
    try:
        world: Any = dist.group.WORLD
        text: str = world._get_backend(torch.device("cpu")).fabric_json
        return dist.get_rank(), text
    finally:
        dist.destroy_process_group()


def _probe(options: argparse.Namespace) -> int:
    if "RANK" not in os.environ:
        return _probe_this_host(options)
    try:
        rank, text = measure(pairs=options.pairs, init_method=options.init_method)
    except (RuntimeError, ValueError) as error:  # a rank is missing or has failed
        return _complain(f"cannot measure: {error}")
    if rank != 0:
        return 0
    if options.out is not None:
        try:
            options.out.write_text(text)
        except OSError as error:
            return _complain(f"cannot write the fabric to {options.out}: {error}")
    if options.json:
        print(text, end="")
    else:
        from q7x2.fabric import show as fabric_show

        fabric_show.show(load(text))
    return 0


def _probe_this_host(options: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "q7x2", "fabric", "probe"]
    command += ["--pairs"] * options.pairs + ["--json"] * options.json
    command += ["--out", str(options.out)] if options.out is not None else []
    with tempfile.TemporaryDirectory(prefix="q7x2-probe-") as directory:
        command += ["--init-method", f"file://{directory}/store"]
        ranks = [
            subprocess.Popen(
                command,
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)},
            )
            for rank in range(options.ranks)
        ]
        try:
            # One that fails leaves the others waiting for it.
            while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
                time.sleep(0.01)
            return 1 if any(codes) else 0
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _show(options: argparse.Namespace) -> int:
    try:
        fabric = read(options.file or newest())
        if options.out is not None:
            from q7x2.fabric import draw as fabric_draw

            fabric_draw.draw(fabric, options.out)
            print(f"wrote {options.out}")
            return 0
    except FabricError as error:
        return _complain(str(error))
    if options.json:
        print(json.dumps(fabric, indent=2))
        return 0
    from q7x2.fabric import show as fabric_show

    fabric_show.show(fabric)
    return 0


def _complain(text: str) -> int:
    print(f"q7x2 fabric: {text}", file=sys.stderr)
    return 1
