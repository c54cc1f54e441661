"""``q7x2 why``: where the time of a step goes, over all ranks, in a few lines."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from q7x2._core.units import time_text
from q7x2.ledger import rates as ledger_rates
from q7x2.ledger.critical_path import TEXTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from q7x2.ledger.causes import Analysis
    from q7x2.ledger.reader import Ledger

_MOST_CAUSES = 5
_WIDTH = 30


def add_parser(commands: Any) -> None:
    """Add ``why`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "why",
        help="say why the steps of a job take as long as they do",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import json

    from q7x2.ledger import causes as ledger_causes
    from q7x2.ledger import reader as ledger_reader

    try:
        ledgers = ledger_reader.read(options.directory)
        analysis = ledger_causes.analyse(ledgers)
    except (ledger_reader.LedgerError, OSError) as error:
        print(f"q7x2 why: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(facts(analysis), indent=2))
    else:
        print("\n".join(lines(ledgers, analysis)))
    return 0


def facts(analysis: Analysis) -> dict[str, Any]:
    """The analysis as plain values. Seconds per step."""
    return {
        "steps": len(analysis.steps),
        "boundaries": analysis.boundaries.origin,
        "seconds": analysis.seconds(),
        "overlap": analysis.overlap,
        "parts": {part: analysis.part(part) for part in TEXTS},
        "causes": [
            {"kind": each.kind, "who": each.who, "seconds": each.seconds, "text": each.text}
            for each in analysis.causes
        ],
    }


def lines(ledgers: Sequence[Ledger], analysis: Analysis) -> list[str]:
    """The report, without an end of line."""
    seconds = analysis.seconds()
    if seconds == 0:
        return ["the ledgers have no operations"]
    number = len(analysis.steps)
    heading = f"{number:,} steps of {time_text(seconds)} each on {len(ledgers)} ranks"
    if analysis.boundaries.origin == "none":
        heading = f"{time_text(seconds)} on {len(ledgers)} ranks; no steps were found"
    elif analysis.boundaries.origin == "estimated":
        heading += " (estimated; q7x2.log_step says where steps end)"
    found = [heading]
    for part, text in TEXTS.items():
        taken = analysis.part(part)
        bar = "#" * round(_WIDTH * taken / seconds)
        share = 100 * taken / seconds
        found.append(
            f"  {part:13} {time_text(taken):>8} {share:5.1f} % {bar:{_WIDTH}} {text}".rstrip()
        )
    if analysis.overlap is not None:
        percent = f"{100 * analysis.overlap:.0f} %"
        found.append(f"while operations are in flight, programs go on for {percent} of the time")
    for index, cause in enumerate(analysis.causes[:_MOST_CAUSES]):
        begin = "first cause:" if index == 0 else "then:       "
        found.append(f"{begin} {cause.text} ({time_text(cause.seconds)} per step)")
    found += [f"at {each}" for each in ledger_rates.lines(ledgers)]
    lost = sum(ledger.lost for ledger in ledgers)
    if lost > 0:
        found.append(f"{lost:,} operations were lost, so parts may be wrong")
    return found
