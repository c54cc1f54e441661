"""What is recorded of durations stands in a page, the longest first."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.runner import durations

KNOWN = {
    "cpp": {"cpp:Reader": 1.0, "cpp:Writer": 2.5, "threads:Queue": 9.0},
    "python": {"groups/test_shrink.py": 4.0, "groups/test_restarts.py": 3.0},
}
ROWS = [
    "| GoogleTest, `threads` | 1 | 9 | `Queue`: 9 |",
    "| `groups/` | 2 | 7 | `test_shrink.py`: 4 |",
    "| GoogleTest, `cpp` | 2 | 4 | `Writer`: 2 |",
]


def test_the_table_replaces_the_last_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, page = tmp_path / "durations.json", tmp_path / "page.md"
    recorded.write_text(json.dumps(KNOWN))
    monkeypatch.setattr(durations, "DURATIONS", recorded)
    page.write_text(f"before\n{durations.BEGIN}\nold\n{durations.END}\nafter\n")
    for _ in range(2):
        durations.publish(page)
        lines = page.read_text().splitlines()
        assert lines[:2] == ["before", durations.BEGIN]
        assert lines[5:-3] == ROWS
        assert lines[-2:] == [durations.END, "after"]
