"""``q7x2 plan timeline``: a step with forward overlap, as predicted and as measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add ``timeline`` to the subcommands of ``q7x2 plan``."""
    parser = commands.add_parser(
        "timeline", help="show a training step with forward overlap, predicted and measured"
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="what attached.timeline.save(FILE) has written"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.overlap.timeline import ForwardTimeline

    try:
        timeline = ForwardTimeline.load(options.file)
        text = options.file.read_text() if options.json else str(timeline)
    except (OSError, ValueError) as error:
        print(f"q7x2 plan timeline: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0
