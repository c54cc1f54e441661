"""``q7x2 sql``: a question in SQL about the operations of all ranks."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from q7x2.ledger.reader import Ledger


def add_parser(commands: Any) -> None:
    """Add ``sql`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "sql",
        help="ask a question in SQL about the operations of a job",
        description="The table `operation` has one row per operation that is over, with the column "
        "`rank`. Times are nanoseconds of rank 0's clock. The answer is lines with tabs.",
        epilog="Q7X2_LEDGER=DIR makes each rank of a job write its ledger there.",
    )
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="with the ledgers")
    parser.add_argument("query", metavar="QUERY", help="an SQL statement of SQLite")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2.ledger import reader as ledger_reader

    try:
        with contextlib.closing(operation_table(ledger_reader.read(options.directory))) as table:
            answer = table.execute(options.query)
            print("\t".join(column[0] for column in answer.description or ()))
            for row in answer:
                print("\t".join("" if value is None else str(value) for value in row))
    except BrokenPipeError:
        raise
    except (ledger_reader.LedgerError, sqlite3.Error, OSError) as error:
        print(f"q7x2 sql: {error}", file=sys.stderr)
        return 1
    return 0


def operation_table(ledgers: Sequence[Ledger]) -> sqlite3.Connection:
    """A temporary database with the table ``operation`` of all ranks."""
    from q7x2.ledger.records import temporary_database

    columns = ["runtime", *ledgers[0].columns()]
    table = temporary_database()
    table.execute(f"CREATE TABLE operation (rank, {', '.join(columns)})")
    values = ", ".join("?" * len(columns))
    table.execute("BEGIN")
    for ledger in ledgers:
        table.executemany(
            f"INSERT INTO operation VALUES ({ledger.rank}, {values})", ledger.rows(columns)
        )
    table.execute("COMMIT")
    return table
