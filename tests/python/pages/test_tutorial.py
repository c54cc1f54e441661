"""docs/tutorial.md: its programs and commands, in the order of the page, print what it shows."""

from __future__ import annotations

import pathlib

import pytest
from harness import ROOT
from page_commands import shell
from tutorial_page import Tutorial, expect_lines

from tests.lab import namespaces


def follow(folder: pathlib.Path, *, on_hosts: bool) -> None:
    """Writes the programs, and runs the commands; with ``on_hosts`` those that need the lab."""
    tutorial = Tutorial()
    tutorial.write_files(folder)
    for step in tutorial.steps:
        if step.needs_lab == on_hosts:
            expect_lines(step.shown, run(folder, step.code))


def run(folder: pathlib.Path, code: str) -> str:
    command = code.replace("./dev lab", "python -m tests.lab")
    return shell(command, folder, PYTHONPATH=str(ROOT))


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
