"""Recorded durations, and how work is divided by them."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .paths import DURATIONS, ROOT

UNKNOWN = 0.05  # seconds for what has not been recorded yet
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- durations: written by ./dev test --record -->", "<!-- end of durations -->"


def recorded(kind: str) -> dict[str, float]:
    """Seconds by name: of suites (``"cpp"``), or of files (``"python"``)."""
    if not DURATIONS.exists():
        return {}
    found: dict[str, float] = json.loads(DURATIONS.read_text()).get(kind, {})
    return found


def record(kind: str, seconds: Mapping[str, float]) -> None:
    """Replaces what is recorded for ``kind``."""
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    known[kind] = {name: round(value, 2) for name, value in sorted(seconds.items())}
    DURATIONS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def table(known: Mapping[str, Mapping[str, float]]) -> str:
    """Where the time goes, in Markdown: a row for each program and for each folder of pytest."""
    rows = []
    for kind, separator in (("cpp", ":"), ("python", "/")):
        topics: dict[str, list[tuple[float, str]]] = {}
        for name, seconds in known.get(kind, {}).items():
            topic, _, rest = name.partition(separator)
            topics.setdefault(topic, []).append((seconds, rest))
        for topic, found in topics.items():
            total, (most, longest) = sum(seconds for seconds, _ in found), max(found)
            shown = f"`{topic}/`" if kind == "python" else f"GoogleTest, `{topic}`"
            cells = [shown, str(len(found)), f"{total:.0f}", f"`{longest}`: {most:.0f}"]
            rows.append((total, f"| {' | '.join(cells)} |"))
    lines = [row for _, row in sorted(rows, reverse=True)]
    head = ["| topic | files or suites | seconds | the longest |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines])


def publish(page: Path) -> None:
    """Writes what is recorded into the page, between its two marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    text = table(json.loads(DURATIONS.read_text()))
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def balanced(names: Sequence[str], seconds: Mapping[str, float], parts: int) -> list[list[str]]:
    """Divides ``names`` into at most ``parts`` lists that take about as long, the longest first."""
    loads = [(0.0, part) for part in range(max(1, min(parts, len(names))))]
    result: list[list[str]] = [[] for _ in loads]
    for name in sorted(names, key=lambda n: (-seconds.get(n, UNKNOWN), n)):
        load, part = heapq.heappop(loads)
        result[part].append(name)
        heapq.heappush(loads, (load + seconds.get(name, UNKNOWN), part))
    return [part for part in result if part]
