"""``q7x2 report``: the ledgers of all ranks as one HTML page that needs no network."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from q7x2._core.argument_types import finite

if TYPE_CHECKING:
    from q7x2.report.page import Job


def add_parser(commands: Any) -> None:
    """Add ``report`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "report",
        help="show where the time of a job went, as an HTML page",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument(
        "other", type=pathlib.Path, metavar="DIR", nargs="?", help="another job, to be compared"
    )
    parser.add_argument("--out", type=pathlib.Path, help="the file to write (DIR/report.html)")
    parser.add_argument("--prices", type=pathlib.Path, metavar="FILE", help="prices as TOML")
    parser.add_argument(
        "--target-loss", type=finite, metavar="LOSS", help="what it cost to reach this loss"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.ledger import reader as ledger_reader
    from q7x2.report import page as report_page

    path: pathlib.Path = options.out or options.directory / "report.html"
    directories = [options.directory] + ([options.other] if options.other else [])
    try:
        if options.target_loss is not None and options.prices is None:
            raise ValueError("--target-loss needs --prices")
        names = _names([each.resolve() for each in directories])
        jobs = [_job(*each, options) for each in zip(names, directories, strict=True)]
        path.write_text(report_page.page(jobs), encoding="utf-8")
    except (ledger_reader.LedgerError, ValueError, OSError) as error:
        print(f"q7x2 report: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


def _names(directories: Sequence[pathlib.Path]) -> list[str]:
    """The shortest ends of the paths by which they differ."""
    longest = max(len(each.parts) for each in directories)
    for length in range(1, longest + 1):
        names = [str(pathlib.Path(*each.parts[-length:])) for each in directories]
        if len(set(names)) == len(names):
            return names
    return [str(each) for each in directories]


def _job(name: str, directory: pathlib.Path, options: argparse.Namespace) -> Job:
    from q7x2.ledger import causes as ledger_causes
    from q7x2.ledger import reader as ledger_reader
    from q7x2.ledger import solution as ledger_solution
    from q7x2.ledger.prices import Prices
    from q7x2.ledger.summary import summarize
    from q7x2.report import page as report_page

    prices = None if options.prices is None else Prices.read(options.prices)
    ledgers = ledger_reader.read(directory)
    analysis = ledger_causes.analyse(ledgers)
    costs = None
    if prices is not None:
        costs = ledger_solution.costs(ledgers, analysis, prices, options.target_loss)
    return report_page.Job(name, ledgers, summarize(ledgers), analysis, prices, costs)
