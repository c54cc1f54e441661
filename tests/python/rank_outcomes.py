"""What became of each rank of a test, and the error that tells of all of them."""

from __future__ import annotations

import dataclasses
import signal
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flight_lines import flight_lines
from rank_scripts import tail


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one rank did. ``at`` is ``time.monotonic()`` on the rank, comparable on one machine."""

    rank: int
    kind: str  # "ok", "skip", "error", "died", "hung"; "running", of a test that has not collected
    value: Any = None
    error: str = ""
    error_type: str = ""
    trace: str = ""
    exitcode: int | None = None
    at: float = 0.0
    log: str = ""
    flight: str = ""  # the flight record, JSON
    no_flight: str = ""  # why there is none

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("ok", "skip")

    def flight_lines(self) -> list[str]:
        """The last operations, or why they are not known."""
        if self.flight:
            return flight_lines(self.flight)
        return [f"none: {self.no_flight}"] if self.no_flight else []

    def describe(self, told: Mapping[str, int] | None = None) -> str:
        """For a person; ``told`` maps traces shown before to the rank they were shown for."""
        head = f"---- rank {self.rank}: {self.kind}"
        if self.exitcode is not None:
            head += f", exit code {self.exitcode}"
            if self.exitcode < 0:
                head += f" ({signal.Signals(-self.exitcode).name})"
        parts = [head]
        if self.kind == "skip":
            parts.append(self.error)
        if self.trace and told is not None and self.trace in told:
            parts.append(f"the same traceback as rank {told[self.trace]}")
        elif self.trace:
            parts.append(self.trace.rstrip())
        if lines := self.flight_lines():
            parts.append("flight record:\n" + textwrap.indent("\n".join(lines), "  "))
        if self.log.strip():
            parts.append("output:\n" + textwrap.indent(tail(self.log), "  "))
        return "\n".join(parts)


class RankFailure(AssertionError):
    """At least one rank did not return; the text has a part for every rank."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        bad = [o.rank for o in outcomes if o.is_failure]
        told: dict[str, int] = {}
        parts = []
        for outcome in outcomes:
            parts.append(outcome.describe(told))
            if outcome.trace:
                told.setdefault(outcome.trace, outcome.rank)
        text = "\n".join(parts)
        super().__init__(f"ranks {bad} of {len(self.outcomes)} failed\n{text}")
