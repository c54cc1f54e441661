"""``q7x2 plan export`` and ``q7x2 plan check``: Plans as JSON files, for ``Q7X2_PLAN``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from q7x2.fabric.arguments import add_schedule_arguments, fabric_of_file, root_of


def add_parsers(commands: Any) -> None:
    """Add ``export`` and ``check`` to the subcommands of ``q7x2 plan``."""
    export = commands.add_parser(
        "export",
        help="write the Plans of all ranks as JSON, to be edited",
        epilog="for example: q7x2 plan export --algorithm ring --ranks 4 -o mine.json",
    )
    add_schedule_arguments(export, ranks="default: those of the fabric")
    export.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="default: the standard output"
    )
    export.set_defaults(run=_export)
    check = commands.add_parser(
        "check",
        help="prove the Plans of a file",
        epilog="The exit status is 1 if the file is refused. docs/own_plans.md has the format.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help='"-": the standard input')
    check.add_argument("--json", action="store_true", help="print JSON instead of sentences")
    check.set_defaults(run=_check)


def _export(options: argparse.Namespace) -> int:
    from q7x2._core.extension import load

    try:
        fabric = fabric_of_file(options)
        text = load().export_plan(
            options.op, options.algorithm, options.ranks, root_of(options), fabric
        )
        if options.out:
            options.out.write_text(text)
        else:
            sys.stdout.write(text)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 plan export: {error}", file=sys.stderr)
        return 1
    return 0


def _check(options: argparse.Namespace) -> int:
    from q7x2._core.extension import load

    try:
        from_stdin = str(options.file) == "-"
        text = sys.stdin.read() if from_stdin else options.file.read_text()
        proven = load().check_plan(text)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 plan check: {options.file}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(proven, indent=2) if options.json else describe(proven))
    return 0


def describe(proven: dict[str, Any]) -> str:
    """What the checker has proven of a file, in sentences."""
    ranks = proven["ranks"]
    root = f", root {proven['root']}" if proven["root"] >= 0 else ""
    lines = [
        f"{proven['algorithm']}: {proven['collective']} by {_count(ranks, 'rank')}{root}",
        f"  {_count(proven['ops'], 'op')}, {_count(proven['messages'], 'message')}, "
        f"{_count(proven['steps'], 'step')} one after the other",
        "proven for data of any length, any number of slices and any window:",
        "  no deadlock; each message is received once, with its own length; no races",
        f"  a rank holds at most {_count(proven['scratch_blocks'], 'scratch block')} "
        f"and stages {_count(proven['stages'], 'block')} per slice",
        f"  {_results(proven)}",
    ]
    if proven["rounds_once"]:
        lines.append("  each result is rounded once: it serves floats of 16 and 8 bits, too")
    return "\n".join(lines)


def _results(proven: dict[str, Any]) -> str:
    ranks = proven["ranks"]
    receivers = _ranks(proven["receivers"], ranks)
    contributors = _ranks(proven["contributors"], ranks)
    if proven["collective"] == "barrier":
        return f"{receivers} leave after {contributors} have entered"
    if proven["collective"] in ("all_reduce", "reduce", "reduce_scatter"):
        quorum = proven["quorum"]
        of = "" if quorum == len(proven["contributors"]) else f"at least {quorum} of "
        return f"{receivers} get each contribution of {of}{contributors} exactly once"
    return f"{receivers} get the data of {contributors}"


def _ranks(ranks: list[int], world_size: int) -> str:
    if len(ranks) == world_size:
        return "all ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
