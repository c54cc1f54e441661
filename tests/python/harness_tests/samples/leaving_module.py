"""A fixture of the module leaves a process; see ``test_leaks.py``."""

from __future__ import annotations

import subprocess

import pytest


@pytest.fixture(scope="module")
def program() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def test_first(program: int) -> None:
    assert program > 0


def test_last(program: int) -> None:
    assert program > 0
