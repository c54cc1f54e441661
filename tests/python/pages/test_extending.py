"""docs/extending.md: the files that name an example are all that a new one needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "extending.md"
ROW = re.compile(r"\| \[.*\] ?\(.*\) \| `(.+)` \| `(\w+)` \| (.+) \|")
SOURCES = [
    file
    for folder in ("csrc", "python/q7x2")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in (".h", ".cpp", ".cu", ".py")
]


def _rows() -> list[tuple[str, str, set[str]]]:
    found = [match.groups() for match in map(ROW.match, PAGE.read_text().splitlines()) if match]
    return [
        (interface, example, set(re.findall(r"`(.+?)`", files)))
        for interface, example, files in found
    ]


def test_the_table_has_rows() -> None:
    assert len(_rows()) >= 5


@pytest.mark.parametrize(
    ("interface", "example", "files"), _rows(), ids=[row[1] for row in _rows()]
)
def test_no_other_file_names_the_example(interface: str, example: str, files: set[str]) -> None:
    assert (ROOT / interface).exists()
    word = re.compile(rf"\b{example}\b")
    naming = {str(file.relative_to(ROOT)) for file in SOURCES if word.search(file.read_text())}
    assert naming == files
