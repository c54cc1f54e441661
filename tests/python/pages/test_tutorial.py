"""docs/tutorial.md: its programs and commands, in the order of the page, print what it shows.

A fence ```` ```python file NAME ```` is a program, and ```` ```bash step ```` a command. A fence
```` ```text output ```` is what the command before it prints: these lines, in this order, with
anything between them; `…` stands for anything within a line. A command that needs virtual machines
is ```` ```bash step lab ````.
"""

from __future__ import annotations

import pathlib
import re

import pytest
from harness import ROOT
from page_commands import shell

from benchmarks.harness.lab import namespaces

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FENCE = re.compile(r"^```(?P<info>[^\n]+)\n(?P<code>.*?)^```$", re.M | re.S)
FENCES = [(match["info"].split(), match["code"]) for match in FENCE.finditer(PAGE)]


def follow(folder: pathlib.Path, *, on_hosts: bool) -> None:
    """Writes the programs, and runs the commands; with ``on_hosts`` those that need the lab."""
    for info, code in FENCES:
        if info[:2] == ["python", "file"]:
            (folder / info[2]).write_text(code)
    output = ""
    for info, code in FENCES:
        if info[:2] == ["bash", "step"]:
            output = run(folder, code) if (info[2:] == ["lab"]) == on_hosts else ""
        elif info == ["text", "output"] and output:
            expect_lines(code, output)


def run(folder: pathlib.Path, code: str) -> str:
    command = code.replace("./dev lab", "python -m benchmarks lab")
    return shell(command, folder, PYTHONPATH=str(ROOT))


def expect_lines(shown: str, output: str) -> None:
    """Lines of the page that only one rank prints come in one order; others may come between."""
    position = 0
    lines = output.splitlines()
    for line in shown.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        found = (i for i in range(position, len(lines)) if pattern.search(lines[i]))
        position = next(found, -1) + 1
        assert position > 0, f"no line {line!r} in its place:\n{output}"


def test_on_one_host(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, on_hosts=False)


@pytest.mark.nightly("three jobs on virtual hosts; test_lab and test_docs run their commands")
def test_on_two_virtual_machines(tmp_path: pathlib.Path) -> None:
    if problem := namespaces.unavailable():
        pytest.skip(problem)
    try:
        follow(tmp_path, on_hosts=True)
    finally:
        run(tmp_path, "./dev lab down")
