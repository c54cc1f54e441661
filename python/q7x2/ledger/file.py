"""The ledger's file of one process: an SQLite database in WAL mode.

One process writes it, from one thread at a time. Others read it meanwhile, and after a crash. The
tables:

- ``meta``: facts about the process and its machine, by ``key``. ``schema_version`` is the first.
- ``runtime``: q7x2 in the process. It starts again if a program makes groups after it had none.
  ``recorded`` operations, of which ``lost`` had left the recorder before they were written.
- ``pg``: process groups, by ``runtime`` and number.
- ``batch``: operations that are over, ``count`` in each row, ``last`` being the largest id.
  ``records`` has a record of equal size for each, as ``meta``'s ``columns`` say: names, SQL types,
  and formats of Python's ``struct``, little-endian. -1 means no value. A text is a number of
  ``names``, a JSON list. Times are nanoseconds of the host's steady clock (CLOCK_MONOTONIC).
- ``counter``: the newest counters per group and kind of operation, as ``q7x2.stats()`` has them.
- ``clock``: how far the steady clock of a group's rank 0 is ahead of this host's.
- ``step``: the ends of steps, with losses, as the program gave them to ``q7x2.log_step``.
- ``residual``: norms of gradients and residuals, by hook of the process, step and parameter, where
  they were measured. Only rank 0 of a hook's group has them, because all ranks know the same.
- ``sample``: totals of the process and its machine, one row per second. ``network`` and
  ``connections`` are JSON.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

from q7x2._core.private_files import create
from q7x2.ledger.samples import Sample

SCHEMA_VERSION = 5

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE runtime (
    runtime INTEGER PRIMARY KEY, process TEXT UNIQUE, recorded INTEGER, lost INTEGER,
    steady_ns INTEGER, wall_ns INTEGER);
CREATE TABLE pg (
    runtime INTEGER, pg INTEGER, name TEXT, identity TEXT, rank INTEGER, members TEXT,
    failure TEXT, PRIMARY KEY (runtime, pg));
CREATE TABLE counter (
    runtime INTEGER, pg INTEGER, operation TEXT, counters TEXT,
    PRIMARY KEY (runtime, pg, operation));
CREATE TABLE clock (
    group_name TEXT, ranks TEXT, leader INTEGER, offset_ns INTEGER, uncertainty_ns INTEGER,
    steady_ns INTEGER);
CREATE TABLE step (steady_ns INTEGER, loss REAL);
CREATE TABLE residual (
    hook INTEGER, name TEXT, step INTEGER, parameter TEXT, gradient REAL, residual REAL,
    policy TEXT, PRIMARY KEY (hook, step, parameter)) WITHOUT ROWID;
CREATE TABLE sample (
    steady_ns INTEGER, cpu_ns INTEGER, main_cpu_ns INTEGER, main_delay_ns INTEGER,
    memory_bytes INTEGER, energy_uj INTEGER, network TEXT, connections TEXT);
CREATE TABLE batch (runtime INTEGER, count INTEGER, last INTEGER, names TEXT, records BLOB);
"""

# Rows that are removed at once when the file is full, as a share of all.
_REMOVED = 8
# Seconds that a write waits for a reader that holds the file.
_PATIENCE = 0.5


class LedgerFile:
    """Writes one file. ``columns``: names, types and formats of an operation's values.

    Raises:
        sqlite3.Error: The file cannot be written.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        path: pathlib.Path,
        columns: Sequence[tuple[str, str, str]],
        facts: dict[str, Any],
        limit: int,
    ) -> None:
        self.path = path
        self._limit = limit
        self._runtimes: dict[int, int] = {}
        # Under another name until it has its tables, so that every reader of the file can read it.
        unfinished = path.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        create(unfinished)
        self.connection = self._connect(unfinished)
        self.connection.executescript(_TABLES)
        self.set_facts(
            {
                "schema_version": SCHEMA_VERSION,
                "columns": json.dumps(list(columns)),
                "removed": 0,
                **facts,
            }
        )
        self.connection.close()
        unfinished.replace(path)

        self.connection = self._connect(path)
        for pragma in (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "journal_size_limit = 4194304",
        ):
            self.connection.execute(f"PRAGMA {pragma}")

    @staticmethod
    def _connect(path: pathlib.Path) -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=_PATIENCE, check_same_thread=False, isolation_level=None
        )

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Set ``meta``'s values."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(key, str(value)) for key, value in facts.items()],
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that is written within it is written, or nothing is."""
        self.connection.execute("BEGIN")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            # SQLite itself rolls back what a full disk stops.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def write(self, batches: Sequence[dict[str, Any]]) -> None:
        """Write what ``LedgerFeed.take`` returned, within a transaction."""
        if not batches:
            return
        for batch in batches:
            self._write(batch)
        self.keep_to_limit()

    def _write(self, batch: dict[str, Any]) -> None:
        run = self.connection.execute
        runtime = self._runtimes.setdefault(batch["process"], len(self._runtimes))
        run(
            "INSERT OR REPLACE INTO runtime VALUES (?, ?, ?, ?, ?, ?)",
            (
                runtime,
                f"{batch['process']:016x}",
                batch["recorded"],
                batch["lost"],
                batch["steady_ns"],
                batch["wall_ns"],
            ),
        )
        for number, group in batch["groups"].items():
            members = json.dumps(group["members"])
            run(
                "INSERT OR REPLACE INTO pg VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    runtime,
                    number,
                    group["name"],
                    group["identity"],
                    group["rank"],
                    members,
                    group["failure"],
                ),
            )
        operations = batch["operations"]
        if operations["count"]:
            run(
                "INSERT INTO batch VALUES (?, ?, ?, ?, ?)",
                (
                    runtime,
                    operations["count"],
                    operations["last"],
                    json.dumps(operations["names"]),
                    operations["records"],
                ),
            )
        for number, operations in batch["counters"].items():
            self.connection.executemany(
                "INSERT OR REPLACE INTO counter VALUES (?, ?, ?, ?)",
                [(runtime, number, kind, json.dumps(each)) for kind, each in operations.items()],
            )

    def add_sample(self, sample: Sample) -> None:
        """Write one sample."""
        self.connection.execute(
            "INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                sample.steady_ns,
                sample.cpu_ns,
                sample.main_cpu_ns,
                sample.main_delay_ns,
                sample.memory_bytes,
                sample.energy_uj,
                json.dumps(sample.network),
                json.dumps(sample.connections),
            ),
        )

    def add_steps(self, steps: Sequence[tuple[int, float | None]]) -> None:
        """Write ends of steps: times of the steady clock in nanoseconds, and losses."""
        self.connection.executemany("INSERT INTO step VALUES (?, ?)", steps)

    def add_residuals(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows of the table ``residual``; those of a step that is repeated are replaced."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO residual VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )

    def add_clock(
        self,
        group: str,
        ranks: Sequence[int],
        leader: int,
        offset: tuple[int, int] | None,
    ) -> None:
        """Say how far the clock of the first of ``ranks`` is ahead of this host's.

        Args:
            group: The group's name.
            ranks: The members' ranks in the job.
            leader: The job rank of this host whose file has the offset.
            offset: Nanoseconds and their uncertainty, measured now; None if it was not measured.
        """
        self.connection.execute(
            "INSERT INTO clock VALUES (?, ?, ?, ?, ?, ?)",
            (
                group,
                json.dumps(list(ranks)),
                leader,
                *(offset or (None, None)),
                time.monotonic_ns(),
            ),
        )

    def keep_to_limit(self) -> None:
        """Remove the oldest batches and steps if the file is larger than its limit."""

        def pragma(name: str) -> int:
            return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])

        used = (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")
        if used <= self._limit:
            return
        ask = "SELECT rowid, count FROM batch ORDER BY rowid"
        batches = self.connection.execute(ask).fetchall()
        removed = int(
            self.connection.execute("SELECT value FROM meta WHERE key = 'removed'").fetchone()[0]
        )
        for row, count in batches[: -(-len(batches) // _REMOVED)]:
            self.connection.execute("DELETE FROM batch WHERE rowid = ?", (row,))
            removed += count
        count = self.connection.execute("SELECT COUNT(*) FROM residual").fetchone()[0]
        self.connection.execute(
            "DELETE FROM residual WHERE (hook, step, parameter) IN "
            "(SELECT hook, step, parameter FROM residual ORDER BY step LIMIT ?)",
            (-(-count // _REMOVED),),
        )
        self.set_facts({"removed": removed})

    def close(self) -> None:
        """Close the file. It needs no log beside it then, unless somebody reads it right now."""
        with contextlib.suppress(sqlite3.OperationalError):
            self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()
