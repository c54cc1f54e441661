"""The section of the report on links and hosts that became slower or faster."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from q7x2.ledger.rates import lines
from q7x2.report.charts import section

if TYPE_CHECKING:
    from q7x2.ledger.reader import Ledger


def report(ledgers: Sequence[Ledger]) -> str:
    """A section of the report; nothing if no rate changed."""
    rows = "".join(f"<li>{escape(each)}</li>" for each in lines(ledgers))
    return section(
        "Rates that changed",
        "q7x2 planned calls again for the links and hosts as they were. Times are UTC.",
        f"<ul>{rows}</ul>" if rows else "",
    )
