"""``q7x2 config``: the variables that are set, where from, and whether their values are right."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from q7x2._core import config_file, variables

# A process of its own makes a group of one rank, as a training does: what reads a variable in the
# training reads it here.
_TRY = """
import sys
import torch, torch.distributed as dist
try:
    dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
except Exception as error:
    sys.exit(str(error).splitlines()[0])
"""


def add_parser(commands: Any) -> None:
    """Add ``config`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "config", help="show the variables of q7x2 that are set, and check their values"
    )
    parser.add_argument(
        "file", nargs="?", help="a TOML file, used as if Q7X2_CONFIG named it", metavar="FILE"
    )
    parser.add_argument("--check", action="store_true", help="try them in a group of one rank")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.file:
        os.environ[config_file.VARIABLE] = options.file
    before = {name for name in variables.KNOWN if os.environ.get(name)}
    try:
        config_file.apply()
    except ValueError as error:
        print(f"q7x2 config: {error}", file=sys.stderr)
        return 1
    path = os.environ.get(config_file.VARIABLE, "")
    for name in variables.KNOWN:
        if name != config_file.VARIABLE and (value := os.environ.get(name)):
            print(f"{name}={_shown(name, value)}  # {'environment' if name in before else path}")
    for name in variables.unknown():
        near = variables.nearest(name)
        print(f"{name} has no effect{f': did you mean {near}?' if near else ''}", file=sys.stderr)
    return _check() if options.check else 0


def _shown(name: str, value: str) -> str:
    return "..." if name == "Q7X2_SECRET" else value


def _check() -> int:
    """The exit status: 1 if a process with these variables cannot make a group."""
    tried = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TRY],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
        print(f"q7x2 config: {lines[-1]}", file=sys.stderr)
        return 1
    print("a group of one rank works with these")
    return 0
