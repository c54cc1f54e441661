"""Reads the ledgers of a job: the files that ``Q7X2_LEDGER`` made, on one clock.

The clock is the steady clock of rank 0's host. A file's own times are moved by the offset that its
host's first rank has measured; if there is none, the hosts' times of day are compared instead, and
the uncertainty is unknown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import pathlib
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from q7x2.ledger.file import SCHEMA_VERSION
from q7x2.ledger.records import operation_table
from q7x2.ledger.samples import Sample

_TIMES = ("queued_ns", "started_ns", "finished_ns")


class LedgerError(Exception):
    """A directory has no ledger, or this version cannot read a file."""


@dataclasses.dataclass
class Ledger:
    """The ledger of one process.

    ``offset_ns`` is what has to be added to its times, right within ``uncertainty_ns``; that is
    None if nothing was measured.
    """

    path: pathlib.Path
    facts: dict[str, str]
    rank: int
    lost: int
    recorded: int
    offset_ns: int = 0
    uncertainty_ns: int | None = None

    def groups(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The process groups, by runtime and number: ``name``, ``identity``, ``rank``, ``members``,
        ``failure``."""
        with _open(self.path) as connection:
            return {
                (row["runtime"], row["pg"]): {
                    **dict(row),
                    "members": json.loads(row["members"]),
                }
                for row in connection.execute("SELECT * FROM pg")
            }

    def span(self) -> tuple[int, int] | None:
        """When the first operation was submitted and the last one ended, on rank 0's clock."""
        ((begin, end),) = self._table.execute(
            "SELECT MIN(queued_ns), MAX(finished_ns) FROM operation"
        )
        return None if begin is None else (begin + self.offset_ns, end + self.offset_ns)

    def columns(self) -> list[str]:
        """Names of an operation's values, see ``rows``."""
        return [name for name, _, _ in json.loads(self.facts["columns"])]

    def operations(self) -> Iterator[dict[str, Any]]:
        """The operations by the time of their submission, with the columns of the table.

        ``queued_ns``, ``started_ns`` and ``finished_ns`` are on rank 0's clock.
        """
        rows = self._table.execute("SELECT * FROM operation ORDER BY queued_ns")
        names = [column[0] for column in rows.description]
        for row in rows:
            operation = dict(zip(names, row, strict=True))
            for key in _TIMES:
                if operation[key] is not None:
                    operation[key] += self.offset_ns
            yield operation

    def rows(self, columns: Sequence[str], condition: str = "TRUE") -> Iterator[tuple[Any, ...]]:
        """Some values of operations, as tuples. Much faster than ``operations``.

        Args:
            columns: Names of the table's columns, or SQL expressions. Times, if asked for by their
                names, are on rank 0's clock.
            condition: What must hold, and how rows are ordered, in SQL.
        """
        return self._rows(self._table, columns, condition)

    def _rows(
        self, table: sqlite3.Connection, columns: Sequence[str], condition: str
    ) -> Iterator[tuple[Any, ...]]:
        chosen = ", ".join(
            f"{name} + {self.offset_ns}" if name in _TIMES else name for name in columns
        )
        return table.execute(f"SELECT {chosen} FROM operation WHERE {condition}")

    def newest(self, columns: Sequence[str], most: int, since_ns: int) -> Iterator[tuple[Any, ...]]:
        """As ``rows``, of the newest ``most`` operations those that ended after ``since_ns``.

        ``since_ns`` is on rank 0's clock. It takes equally long for short and long files.
        """
        newest = "runtime = (SELECT MAX(runtime) FROM batch)"
        begin = f"(SELECT MAX(last) FROM batch WHERE {newest}) - {most}"
        table = self._operations(f"{newest} AND last > {begin}")
        condition = (
            f"finished_ns + {self.offset_ns} > {since_ns} AND "
            f"id > (SELECT MAX(id) FROM operation) - {most}"
        )
        with contextlib.closing(table):
            yield from self._rows(table, columns, condition)

    @functools.cached_property
    def _table(self) -> sqlite3.Connection:
        table = self._operations("TRUE")
        weakref.finalize(self, table.close)
        return table

    def _operations(self, condition: str) -> sqlite3.Connection:
        """A database with the operations of some batches as rows of the table ``operation``."""
        columns = json.loads(self.facts["columns"])
        with _open(self.path) as connection:
            connection.row_factory = None
            batches = connection.execute(
                f"SELECT runtime, names, records FROM batch WHERE {condition} ORDER BY rowid"
            )
            return operation_table(columns, batches)

    def sent(self) -> tuple[int, int]:
        """Bytes that all operations sent through networks, and through shared memory."""
        columns = ("COALESCE(SUM(sent_network), 0)", "COALESCE(SUM(sent_memory), 0)")
        ((network, memory),) = self.rows(columns)
        return network, memory

    def steps(self) -> list[tuple[int, float | None]]:
        """Ends of steps on rank 0's clock and losses, as ``q7x2.log_step`` was told."""
        with _open(self.path) as connection:
            rows = connection.execute("SELECT steady_ns, loss FROM step ORDER BY steady_ns")
            return [(row[0] + self.offset_ns, row[1]) for row in rows]

    def residuals(self, columns: str, condition: str) -> list[tuple[Any, ...]]:
        """Values of the table ``residual``; both arguments are SQL."""
        with _open(self.path) as connection:
            connection.row_factory = None
            return connection.execute(
                f"SELECT {columns} FROM residual WHERE {condition}"
            ).fetchall()

    def last_samples(self, seconds: float) -> list[Sample]:
        """The samples of the last ``seconds`` and the one before, as ``samples`` has them."""
        with _open(self.path) as connection:
            rows = connection.execute(
                "SELECT * FROM sample ORDER BY rowid DESC LIMIT ?", (int(seconds) + 2,)
            ).fetchall()
        return [self._sample(row) for row in reversed(rows)]

    def written_wall_ns(self) -> int:
        """The host's time of day when the ledger was written last, nanoseconds since 1970."""
        with _open(self.path) as connection:
            row = connection.execute(
                "SELECT MAX(wall_ns - steady_ns) + (SELECT MAX(steady_ns) FROM sample) FROM runtime"
            ).fetchone()
        return int(row[0] or 0)

    def _sample(self, row: sqlite3.Row) -> Sample:
        values = dict(row)
        values["steady_ns"] += self.offset_ns
        values["network"] = json.loads(values["network"])
        values["connections"] = json.loads(values["connections"])
        return Sample(**values)

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """The samples, with times on rank 0's clock, which has to be known before."""
        with _open(self.path) as connection:
            rows = connection.execute("SELECT * FROM sample ORDER BY steady_ns").fetchall()
        return [self._sample(row) for row in rows]


def read(directory: pathlib.Path) -> list[Ledger]:
    """The ledgers of the newest job in ``directory``, by rank.

    They are the newest of each rank, as far as groups connect them with the newest of all.

    Raises:
        LedgerError: There is no ledger, or one cannot be read.
    """
    paths = sorted(directory.glob("q7x2-rank*.sqlite"))
    if not directory.is_dir():
        raise LedgerError(f"{directory}: expected a directory with ledgers")
    if not paths:
        raise LedgerError(f"{directory} has no ledger; Q7X2_LEDGER={directory} makes one per rank")
    newest: dict[int, Ledger] = {}
    for path in paths:
        ledger = _ledger(path)
        known = newest.get(ledger.rank)
        if known is None or _begun(known) < _begun(ledger):
            newest[ledger.rank] = ledger
    ledgers = _of_one_job([newest[rank] for rank in sorted(newest)])
    _align(ledgers)
    return ledgers


def _of_one_job(ledgers: Sequence[Ledger]) -> list[Ledger]:
    identities = {
        ledger.rank: {group["identity"] for group in ledger.groups().values()} for ledger in ledgers
    }
    reached = {max(ledgers, key=_begun).rank}
    known: set[str] = set()
    while True:
        known.update(*(identities[rank] for rank in reached))
        linked = {rank for rank, those in identities.items() if those & known}
        if linked <= reached:
            return [ledger for ledger in ledgers if ledger.rank in reached]
        reached |= linked


def _begun(ledger: Ledger) -> int:
    return int(ledger.facts["begun_wall_ns"])


class _open:
    """A connection that is closed at the end, with rows by name."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        self._connection.row_factory = sqlite3.Row
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _ledger(path: pathlib.Path) -> Ledger:
    try:
        with _open(path) as connection:
            facts = dict(connection.execute("SELECT key, value FROM meta").fetchall())
            lost, recorded = connection.execute(
                "SELECT COALESCE(SUM(lost), 0), COALESCE(SUM(recorded), 0) FROM runtime"
            ).fetchone()
    except sqlite3.Error as error:
        raise LedgerError(f"{path} could not be read: {error}") from error
    version = facts.get("schema_version")
    if version != str(SCHEMA_VERSION):
        raise LedgerError(
            f"{path} has version {version} of the schema; this q7x2 reads version {SCHEMA_VERSION}"
        )
    lost += int(facts["removed"])
    return Ledger(path, facts, int(facts["rank"]), lost, recorded)


def _align(ledgers: Sequence[Ledger]) -> None:
    """Move all times to the clock of the first ledger's host."""
    reference = ledgers[0]
    clocks = {ledger.rank: _clocks(ledger.path) for ledger in ledgers}
    for ledger in ledgers:
        measured = _measured(clocks, ledger.rank, reference.rank)
        if measured is not None:
            ledger.offset_ns, ledger.uncertainty_ns = measured
        else:
            ledger.offset_ns = _boot_time(ledger.path) - _boot_time(reference.path)


def _clocks(path: pathlib.Path) -> list[dict[str, Any]]:
    with _open(path) as connection:
        rows = connection.execute("SELECT * FROM clock ORDER BY steady_ns").fetchall()
    return [{**dict(row), "ranks": json.loads(row["ranks"])} for row in rows]


def _measured(
    clocks: dict[int, list[dict[str, Any]]], rank: int, reference: int
) -> tuple[int, int] | None:
    """The offset of ``rank``'s host, from a group whose rank 0 is ``reference``."""
    for row in clocks[rank]:
        if row["ranks"][0] != reference:
            continue
        for other in clocks.get(row["leader"], []):
            if other["ranks"] == row["ranks"] and other["offset_ns"] is not None:
                return other["offset_ns"], other["uncertainty_ns"]
    return None


def _boot_time(path: pathlib.Path) -> int:
    """When the host's steady clock was 0, in nanoseconds since 1970."""
    with _open(path) as connection:
        row = connection.execute("SELECT wall_ns - steady_ns FROM runtime").fetchone()
    return int(row[0]) if row else 0
