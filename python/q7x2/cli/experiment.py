"""``q7x2 experiment``: variants of a training against a baseline, with a verdict."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Add ``experiment`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "experiment", help="compare variants of a training with a baseline"
    )
    actions = parser.add_subparsers(dest="experiment", required=True, metavar="ACTION")
    run = actions.add_parser(
        "run",
        help="run what is missing, and say what is better",
        epilog="docs/experiments.md explains the file.",
    )
    run.add_argument("file", type=pathlib.Path, metavar="FILE", help="the experiment as TOML")
    run.add_argument("--out", type=pathlib.Path, help="a folder for the results (beside FILE)")
    run.add_argument(
        "--tune",
        action="store_true",
        help="search the settings of [tune], and validate the winner on the held-out network",
    )
    run.add_argument("--json", action="store_true", help="print JSON instead of a report")
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.experiment import program as experiment_program

    try:
        text = (_tuned if options.tune else _compared)(options)
    except (experiment_program.ExperimentError, ValueError, OSError) as error:
        print(f"q7x2 experiment: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("q7x2 experiment: stopped; the same command goes on", file=sys.stderr)
        return 130
    print(text)
    return 0


def _compared(options: argparse.Namespace) -> str:
    import dataclasses
    import json

    from q7x2.experiment import file as experiment_file
    from q7x2.experiment import run as experiment_run

    experiment = experiment_file.read(options.file)
    verdicts = experiment_run.run(experiment, _directory(options), _say)
    if options.json:
        return json.dumps([dataclasses.asdict(each) for each in verdicts], indent=2)
    return "\n".join(experiment_run.lines(experiment, verdicts))


def _tuned(options: argparse.Namespace) -> str:
    import dataclasses
    import json

    from q7x2.experiment import tune as experiment_tune
    from q7x2.experiment import tune_file as experiment_tune_file

    tuning = experiment_tune_file.read(options.file)
    outcome = experiment_tune.run(tuning, _directory(options), _say)
    if options.json:
        return json.dumps(dataclasses.asdict(outcome), indent=2)
    return "\n".join(experiment_tune.lines(tuning, outcome))


def _directory(options: argparse.Namespace) -> pathlib.Path:
    directory: pathlib.Path = options.out or options.file.with_suffix("")
    return directory


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
