"""Links and hosts that became slower or faster while a job ran, for ledger, report and ``why``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from q7x2.ledger.reader import Ledger

FACT = "rate_changes"
"""The fact of a ledger that has them."""


def as_fact(changes: Sequence[tuple[int, str]]) -> str:
    """Changes, each with its nanoseconds since 1970, as a value of the table ``meta``."""
    return json.dumps(changes)


def lines(ledgers: Sequence[Ledger]) -> list[str]:
    """Each change with its time of day (UTC), in order; those of the first rank that knows any.

    All ranks of a group notice the same changes.
    """
    for ledger in ledgers:
        changes = json.loads(ledger.facts.get(FACT, "[]"))
        if changes:
            return [f"{_time_text(wall_ns)} {text}" for wall_ns, text in changes]
    return []


def _time_text(wall_ns: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ns * 1e-9, datetime.timezone.utc).strftime(
        "%H:%M:%S"
    )
