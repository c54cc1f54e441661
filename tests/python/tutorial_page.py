"""A page to follow: its programs, its commands in the order of the page, and what they print.

A fence ```` ```python file NAME ```` is a program, and ```` ```bash step ```` a command. A fence
```` ```text output ```` is what the command before it prints: these lines, in this order, with
anything between them; `…` stands for anything within a line. A command that needs virtual machines
is ```` ```bash step lab ````.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

import harness

_FENCE = re.compile(r"^```(?P<info>[^\n]+)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass
class Step:
    """A command of the page.

    Attributes:
        code: What the shell runs.
        needs_lab: Whether it needs virtual machines.
        shown: What the page says that it prints; empty if it says nothing.
    """

    code: str
    needs_lab: bool
    shown: str = ""


class Tutorial:
    """What a page has, such as docs/tutorial.md."""

    def __init__(self, page: str = "tutorial") -> None:
        self.files: dict[str, str] = {}
        self.steps: list[Step] = []
        text = (harness.ROOT / "docs" / f"{page}.md").read_text()
        for match in _FENCE.finditer(text):
            info, code = match["info"].split(), match["code"]
            if info[:2] == ["python", "file"]:
                self.files[info[2]] = code
            elif info[:2] == ["bash", "step"]:
                self.steps.append(Step(code, needs_lab=info[2:] == ["lab"]))
            elif info == ["text", "output"]:
                self.steps[-1].shown = code

    def write_files(self, folder: pathlib.Path) -> None:
        for name, code in self.files.items():
            (folder / name).write_text(code)


def expect_lines(shown: str, output: str) -> None:
    """Lines of the page that only one rank prints come in one order; others may come between."""
    position = 0
    lines = output.splitlines()
    for line in shown.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        found = (i for i in range(position, len(lines)) if pattern.search(lines[i]))
        position = next(found, -1) + 1
        assert position > 0, f"no line {line!r} in its place:\n{output}"
