"""The ``q7x2`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from q7x2._core.version_action import VersionAction
from q7x2.cli import (
    advise,
    blame,
    config,
    cost,
    experiment,
    info,
    report,
    sql,
    timeline,
    top,
    trace,
    why,
)
from q7x2.fabric import command as fabric_command
from q7x2.plan import draw as plan_draw
from q7x2.plan import explain as plan_explain
from q7x2.plan import files as plan_files
from q7x2.plan import serve as plan_serve
from q7x2.plan import simulate as plan_simulate
from q7x2.plan import tune_collectives as plan_tune_collectives


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="q7x2", description="A PyTorch distributed backend over UCX."
    )
    parser.add_argument(
        "--version", action=VersionAction, help="print the versions of q7x2, torch and UCX"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_parser(commands)
    config.add_parser(commands)
    fabric_command.add_parser(commands)
    plan = commands.add_parser("plan", help="look at the Plans that algorithms make")
    actions = plan.add_subparsers(dest="plan", required=True, metavar="ACTION")
    plan_draw.add_parser(actions)
    plan_explain.add_parser(actions)
    timeline.add_parser(actions)
    plan_files.add_parsers(actions)
    plan_simulate.add_parser(commands)
    plan_serve.add_parser(commands)
    plan_tune_collectives.add_parser(commands)
    advise.add_parser(commands)
    blame.add_parser(commands)
    trace.add_parser(commands)
    report.add_parser(commands)
    why.add_parser(commands)
    cost.add_parser(commands)
    top.add_parser(commands)
    sql.add_parser(commands)
    experiment.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (those of the process if None).

    Returns:
        The exit status: 0 if the command did what it was asked for. What went wrong is on stderr.
    """
    options = make_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except ImportError as error:  # torch, UCX or an optional package is missing or does not fit
        print(f"q7x2: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
