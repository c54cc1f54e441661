"""The records of operations in a ledger's file, as rows of a table.

See ``csrc/ledger/operation_table.h`` for how records are made, and ``ledger.file`` for where.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Sequence

Column = Sequence[str]
"""Name, SQL type, and format of ``struct``."""


def temporary_database() -> sqlite3.Connection:
    """A database that goes when it is closed; on disk if it is large."""
    connection = sqlite3.connect("", isolation_level=None)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def operation_table(
    columns: Sequence[Column], batches: Iterable[tuple[int, str, bytes]]
) -> sqlite3.Connection:
    """A temporary database with the table ``operation``.

    Args:
        columns: Those of the table after the column ``runtime``.
        batches: Runtime, names as a JSON list, and records.
    """
    connection = temporary_database()
    declared = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
    connection.execute(f"CREATE TABLE operation (runtime INTEGER, {declared})")
    connection.execute("CREATE TABLE name (number INTEGER PRIMARY KEY, text TEXT)")
    # The values become what they mean in SQL, because Python would need longer than the rest.
    meaning = {"TEXT": "(SELECT text FROM name WHERE number = ?)", "INTEGER": "NULLIF(?, -1)"}
    values = ", ".join(meaning[kind] for _, kind, _ in columns)
    record = record_format(columns)
    connection.execute("BEGIN")
    for runtime, names, records in batches:
        connection.execute("DELETE FROM name")
        connection.executemany("INSERT INTO name VALUES (?, ?)", enumerate(json.loads(names)))
        connection.executemany(
            f"INSERT INTO operation VALUES ({runtime:d}, {values})", record.iter_unpack(records)
        )
    connection.execute("COMMIT")
    return connection


def record_format(columns: Sequence[Column]) -> struct.Struct:
    """How the values of one record follow each other."""
    return struct.Struct("<" + "".join(format for _, _, format in columns))
