"""The times of release as tables: every row for faults.md, a summary for docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness import facts, report
from tests.faults.contract import CELLS, EVENTS

_EVENTS = {event.name: event for event in EVENTS}
_EVENT_ORDER = {event.name: i for i, event in enumerate(EVENTS)}
_CELL_ORDER = {cell.name: i for i, cell in enumerate(CELLS)}
_HEAD = ("event", "cell", "trials", "median", "p99", "max", "limit", "met")
_SHOWN_PROBLEMS = 2
_TRIALS = 20  # of each cell, that a figure is worth quoting


def order(row: dict[str, Any]) -> tuple[int, int, str]:
    """By event, then by cell; the victim's host first."""
    return _EVENT_ORDER[row["event"]], _CELL_ORDER[row["cell"]], row["where"] != "same host"


def p99(seconds: Sequence[float]) -> float:
    """A value that was measured: with fewer than 100 of them the largest."""
    return float(np.percentile(seconds, 99, method="higher"))


def is_met(row: dict[str, Any]) -> bool:
    """In time, and every trial as the contract says in all other respects."""
    if row["bad_trials"] or len(row["seconds"]) < row["trials"]:
        return False
    return row["limit"] is None or p99(row["seconds"]) <= row["limit"]


def line(row: dict[str, Any]) -> list[str]:
    seconds = row["seconds"]
    figures = (float(np.median(seconds)), p99(seconds), max(seconds)) if seconds else ()
    return [
        title(row),
        row["cell"],
        str(row["trials"]),
        *([_milliseconds(each) for each in figures] or ["-"] * 3),
        "results right" if row["limit"] is None else _milliseconds(row["limit"]),
        _met(row),
    ]


def title(row: dict[str, Any]) -> str:
    where = f", {row['where']}" if row["where"] else ""
    return f"{_EVENTS[row['event']].title}{where}"


def _met(row: dict[str, Any]) -> str:
    if is_met(row):
        return "yes"
    if row["bad_trials"]:
        return f"**no**, {row['bad_trials']} of {row['trials']} trials"
    return "**no**"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{1 if abs(seconds) < 0.1 else 0}f} ms"


def page(rows: Sequence[dict[str, Any]]) -> str:
    """faults.md: all rows, and what was wrong in those that are not met."""
    machines = {facts.describe(row["machine"]) for row in rows}
    text = "# Release times\n\n" + "\n\n".join(sorted(machines)) + "\n\n"
    text += report.markdown(_HEAD, [line(row) for row in rows])
    bad = [row for row in rows if row["problems"] and row["where"] != "another host"]
    if bad:
        text += "\n## What was wrong\n\n"
    for row in bad:
        text += f"- {_EVENTS[row['event']].title}; {row['cell']}:\n"
        for problem in row["problems"][:_SHOWN_PROBLEMS]:
            text += f"  - {' '.join(problem.split())[:400]}\n"
    return text


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each event and place: the worst of its cells counts."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((_title_of_group(row), row["limit"]), []).append(row)
    lines = []
    for (name, limit), cells in groups.items():
        seconds = [s for row in cells for s in row["seconds"]]
        measured = [row for row in cells if row["seconds"]]
        worst = max(measured, key=lambda row: p99(row["seconds"]), default=None)
        lines.append(
            [
                name,
                "results right" if limit is None else report.duration(limit),
                str(sum(row["trials"] for row in cells)),
                _milliseconds(float(np.median(seconds))) if seconds else "-",
                f"{_milliseconds(p99(worst['seconds']))} ({worst['cell']})" if worst else "-",
                _milliseconds(max(seconds)) if seconds else "-",
                f"{sum(is_met(row) for row in cells)} of {len(cells)}",
            ]
        )
    head = (
        "event",
        "limit",
        "trials",
        "median",
        "p99 of the worst cell",
        "max",
        "cells that meet it",
    )
    text = report.markdown(head, lines)
    if any(row["trials"] < _TRIALS for row in rows):
        text += f"\n**Provisional**, because some cells have fewer than {_TRIALS} trials.\n"
    return text


def _title_of_group(row: dict[str, Any]) -> str:
    event = _EVENTS[row["event"]]
    if row["where"] or event.same_host_s == event.other_host_s:
        return title(row)
    return f"{title(row)}, {'one host' if row['hosts'] == 1 else 'two hosts'}"
