"""docs/nightly.md: one row for each step of the nightly run, written anew after each step."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

HEAD = """# Nightly run

What did the long tests find, and at which commit?

```sh
./dev test --nightly               # every step
{part:34} # the second of {parts} parts; each takes less than an hour
./dev test --nightly soak fuzz     # steps by name
```

The nightly run has all world sizes, full matrices, every cell of the failure contract, sanitizers,
fuzzing and other versions of torch. It writes this page after each step. A step that has been run
at a commit is not run again at that commit, so a run goes on where it stopped.
[testing.md](testing.md) describes the tests.

{summary}

| step | result | date | commit | minutes | figures |
| --- | --- | --- | --- | --- | --- |
"""

ROW = re.compile(
    r"^\| (?P<step>[^|]+) \| (?P<result>[^|]+) \| (?P<date>[^|]*) \| (?P<commit>[^|]*) "
    r"\| (?P<minutes>[^|]*) \| (?P<figures>[^|]*) \|$",
    re.M,
)
NEVER = "never run"
STALE = "not run for this commit; last: "


@dataclasses.dataclass(frozen=True)
class Row:
    """What a step's last run found."""

    result: str  # "ok", "failed", "skipped"
    date: str
    commit: str
    minutes: float
    figures: str  # for a person; of a skipped step the reason


def read(page: Path) -> dict[str, Row]:
    """The rows of an earlier page, by step."""
    return rows_of(page.read_text()) if page.exists() else {}


def rows_of(text: str) -> dict[str, Row]:
    """The rows of a page's text, by step; without steps that were never run."""
    found = {}
    for match in ROW.finditer(text):
        result = match["result"].strip().removeprefix(STALE).strip("*")
        if result in ("ok", "failed", "skipped"):
            found[match["step"].strip()] = Row(
                result,
                match["date"].strip(),
                match["commit"].strip().strip("`"),
                float(match["minutes"].strip() or 0),
                match["figures"].strip(),
            )
    return found


def write(
    page: Path, steps: Sequence[str], rows: Mapping[str, Row], at: str, date: str, parts: int
) -> None:
    """``at`` is the commit that rows should have, and ``parts`` how many fit into an hour each."""
    text = HEAD.format(
        part=f"./dev test --nightly --part 2/{parts}",
        parts=parts,
        summary=_summary(steps, rows, at, date),
    )
    for step in steps:
        row = rows.get(step)
        if row is None:
            text += f"| {step} | {NEVER} | | | | |\n"
            continue
        result = f"**{row.result}**" if row.result == "failed" else row.result
        stale = "" if row.commit == at else STALE
        minutes = f"{row.minutes:.1f}" if row.result != "skipped" else ""
        cells = [step, stale + result, row.date, f"`{row.commit}`", minutes, plain(row.figures)]
        text += "| " + " | ".join(cells) + " |\n"
    page.write_text(text.replace("|  |", "| |").replace("|  |", "| |"))


def plain(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())


def _summary(steps: Sequence[str], rows: Mapping[str, Row], at: str, date: str) -> str:
    here = [rows[step].result for step in steps if step in rows and rows[step].commit == at]
    counts = ", ".join(f"{here.count(kind)} {kind}" for kind in ("ok", "failed", "skipped"))
    left = len(steps) - len(here)
    return f"Commit `{at}`, {date}: {counts}, {left} not run. Minutes are those of two cores."
