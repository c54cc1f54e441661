"""The planner's commands on the pages: each one runs, and prints what the page shows below it."""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

import pytest
from page_commands import command, commands, shell
from rank_scripts import ROOT

PLANNER = ("q7x2 plan explain", "q7x2 simulate")
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
)

# Files that the pages make elsewhere, or that are the reader's.
READERS_FILES = re.compile(r"--(?:fabric|history) (?!docs/)\S+")


class Printed(NamedTuple):
    """A command with a ``$`` before it, and the lines below it; ``...`` leaves lines out."""

    page: str
    command: str
    lines: tuple[str, ...]

    def is_in(self, output: str) -> bool:
        """Whether these lines are the output, but for what the page leaves out."""
        parts = re.split(r"^\.\.\.$", "\n".join(self.lines), flags=re.M)
        shown = [part.strip("\n") for part in parts]
        pattern = r"(?:\n.*)*?".join(re.escape("\n" + part) if part else "" for part in shown)
        return re.fullmatch(pattern, "\n" + output.rstrip("\n")) is not None


def printed() -> list[Printed]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```[^\n]*\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                line, *lines = part.rstrip("\n").split("\n")
                found.append(Printed(page, line, tuple(lines)))
    return found


def planned() -> list[str]:
    """The planner's commands in blocks of commands, without output."""
    found = {each for page in PAGES for each in commands(page) if each.startswith(PLANNER)}
    return sorted(each for each in found if not READERS_FILES.search(each))


@pytest.mark.parametrize("each", printed(), ids=lambda each: pathlib.Path(each.page).stem)
def test_a_command_prints_what_its_page_shows(each: Printed, tmp_path: pathlib.Path) -> None:
    output = shell(each.command, tmp_path)
    assert each.is_in(output), f"{each.page} shows other lines than\n{output}"


@pytest.mark.parametrize("line", planned())
def test_a_command_of_the_planner_runs(line: str, tmp_path: pathlib.Path) -> None:
    assert shell(line, tmp_path).strip()


def test_there_are_some() -> None:
    assert any(each.command.startswith(PLANNER) for each in printed())
    assert command("docs/servers.md", "q7x2 plan explain") in planned()


@pytest.mark.parametrize(
    ("lines", "is_in"),
    [
        (("a", "b", "c"), True),
        (("...", "c"), True),
        (("a", "..."), True),
        (("a", "...", "c"), True),
        (("a", "...", "b"), False),
        (("a", "b"), False),
        (("a", "...", "B", "c"), False),
    ],
)
def test_lines_are_compared_but_for_those_left_out(lines: tuple[str, ...], is_in: bool) -> None:
    assert Printed("", "", lines).is_in("a\nb\nc\n") is is_in
