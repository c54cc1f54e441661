"""``q7x2 report``: the ledgers of all ranks as one HTML page that needs no network."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Add ``report`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "report",
        help="show where the time of a job went, as an HTML page",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument("--out", type=pathlib.Path, help="the file to write (DIR/report.html)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2 import _causes, _ledger_read, _report_page
    from q7x2._ledger_summary import summarize

    path: pathlib.Path = options.out or options.directory / "report.html"
    try:
        ledgers = _ledger_read.read(options.directory)
        page = _report_page.page(summarize(ledgers), _causes.analyse(ledgers))
        path.write_text(page, encoding="utf-8")
    except (_ledger_read.LedgerError, OSError) as error:
        print(f"q7x2 report: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0
