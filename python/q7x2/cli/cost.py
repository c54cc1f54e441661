"""``q7x2 cost``: what a job costs in money, energy and bytes."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from q7x2._core.argument_types import finite

if TYPE_CHECKING:
    pass


def add_parser(commands: Any) -> None:
    """Add ``cost`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "cost",
        help="say what a job costs: money, energy and bytes",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument(
        "--prices", type=pathlib.Path, metavar="FILE", required=True, help="prices as TOML"
    )
    parser.add_argument(
        "--target-loss",
        type=finite,
        metavar="LOSS",
        help="also say what it took to reach this loss",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import json

    from q7x2.ledger import causes as ledger_causes
    from q7x2.ledger import prices as ledger_prices
    from q7x2.ledger import reader as ledger_reader
    from q7x2.ledger import solution as ledger_solution

    try:
        prices = ledger_prices.Prices.read(options.prices)
        ledgers = ledger_reader.read(options.directory)
        analysis = ledger_causes.analyse(ledgers)
        found = ledger_solution.costs(ledgers, analysis, prices, options.target_loss)
    except (ledger_reader.LedgerError, ValueError, OSError) as error:
        print(f"q7x2 cost: {error}", file=sys.stderr)
        return 1
    print(
        json.dumps(found.facts(), indent=2)
        if options.json
        else "\n".join(ledger_solution.cost_lines(found))
    )
    return 0 if found.missed is None else 1
