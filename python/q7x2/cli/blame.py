"""``q7x2 blame``: merges the flight recorders of all ranks, and says who is to blame.

For each group it looks for the first operation that a rank has not completed, and asks in turn:

1. Did the ranks make the same call? If not, it says who called what.
2. Did a process die? The others' failure names it.
3. Did every rank come to the operation? A rank whose dump does not have it did not.
4. Did one come much later than the others?
5. If all came: between which two ranks is a message under way? That is the link. If none is: who
   waits for a rank that waits for nobody else? If there is none: for the one that most wait for.

What the exceptions say of a rank that is late, such as "its process is stopped", follows.

Clocks of hosts differ, so times are compared through events that all ranks see at almost the same
moment: the failure of the group, or the end of a collective.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

from q7x2._core.units import time_text
from q7x2.observe import dumps as observe_dumps
from q7x2.observe.blame_case import Case
from q7x2.observe.dumps import Group

# Collectives that no rank can complete before all have come.
_SYNCHRONISES = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One sentence. ``at``: when the trouble showed, seconds since 1970; inf if there is none."""

    text: str
    at: float

    def as_json(self) -> dict[str, Any]:
        """``at`` is null if there is no trouble: JSON has no infinity."""
        return {"text": self.text, "at": self.at if math.isfinite(self.at) else None}


def add_parser(commands: Any) -> None:
    """Add ``blame`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "blame",
        help="read the flight recorders of all ranks, and say who was late or never came",
        epilog="Q7X2_DUMP=DIR makes each rank write its flight recorder there when a group fails, "
        "and on SIGUSR2; q7x2.dump(path) writes it on request.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the dumps")
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")
    parser.add_argument(
        "--torch",
        type=pathlib.Path,
        metavar="OUT",
        help="also write the dumps to OUT as PyTorch's analyser reads them: torchfrtrace OUT",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.observe import torch_trace as observe_torch_trace

    try:
        dumps = observe_dumps.read(options.directory)
        found = verdicts(observe_dumps.groups(dumps))
        if options.json:
            print(json.dumps([verdict.as_json() for verdict in found], indent=2))
        else:
            print("\n".join(verdict.text for verdict in found))
        if options.torch:
            paths = observe_torch_trace.write(dumps, options.torch)
            count = f"{len(paths)} file(s) for PyTorch: torchfrtrace {options.torch}"
            print(count, file=sys.stderr if options.json else sys.stdout)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        print(f"q7x2 blame: {error}", file=sys.stderr)
        return 1
    return 0


def verdicts(groups: list[Group]) -> list[Verdict]:
    """What is wrong, the first trouble first; if nothing is, one sentence that says so."""
    found = [verdict for verdict in map(_judge, groups) if verdict]
    troubles = sorted((v for v in found if v.at != float("inf")), key=lambda v: v.at)
    if troubles:
        return troubles
    idle = max(groups, key=lambda group: sum(len(v.operations) for v in group.views.values()))
    return [Verdict(f"Nothing failed and nothing is in progress.{_latecomer(idle)}", float("inf"))]


def _judge(group: Group) -> Verdict | None:
    case = Case(group)
    questions: tuple[tuple[Callable[[], str | None], Callable[[], str]], ...] = (
        (case.mismatch, str),
        (case.death, str),
        (case.absence, case.found_late),
        (case.lateness, case.found_late),
        (case.link, case.found_late),
        (case.message, case.found_late),
        (case.failure, str),
    )
    for question, addition in questions:
        text = question()
        if text:
            return Verdict(f"group '{group.name}': {text}{addition()}", case.at)
    return None


def _latecomer(group: Group) -> str:
    """Who came last to the collectives that are done, by how little it had to wait in them."""
    lags: dict[int, list[float]] = {rank: [] for rank in group.views}
    done = {
        rank: {
            op.sequence: op.finished - op.submitted
            for op in view.operations
            if op.kind in _SYNCHRONISES and op.state == "done" and op.finished is not None
        }
        for rank, view in group.views.items()
    }
    common = set.intersection(*(set(ops) for ops in done.values())) if len(done) > 1 else set()
    for sequence in common:
        longest = max(ops[sequence] for ops in done.values())
        for rank, ops in done.items():
            lags[rank].append(longest - ops[sequence])
    if not common:
        return ""
    means = {rank: statistics.fmean(each) for rank, each in lags.items()}
    last = max(means, key=lambda rank: means[rank])
    return (
        f" Of group '{group.name}', {group.describe(last)} came last most often: on average "
        f"{time_text(means[last])} after the first one, in {len(common)} calls."
    )
