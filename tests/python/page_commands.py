"""The command lines of pages, which tests take from there and run.

``@runs(page, beginning)`` gives a test the command that begins so, as its argument ``printed``.
``test_commands.py`` reads these marks: each command of README.md, docs/deploy.md and
docs/integrations.md has one.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Mapping

import interpreters
import pytest
from rank_scripts import ROOT

_FENCE = re.compile(r"^```(?:sh|bash)\b[^\n]*\n(.*?)^```$", re.M | re.S)
_COMMENT = re.compile(r"\s+# .*$")
DEADLINE = 280  # seconds; the commands take 10 on a machine with nothing else to do


def commands(page: str) -> list[str]:
    """All of them, in order and without comments; lines that end with a backslash go on."""
    text = "".join(_FENCE.findall((ROOT / page).read_text()))
    lines = re.findall(r"(?:.*\\\n)*.+\n", text)
    return [_COMMENT.sub("", line.rstrip()) for line in lines]


def command(page: str, beginning: str) -> str:
    """The one that begins so; it may be printed several times."""
    found = {each for each in commands(page) if each.startswith(beginning)}
    assert len(found) == 1, f"{page}: {len(found)} commands begin with {beginning!r}"
    return found.pop()


def runs(page: str, *beginnings: str) -> pytest.MarkDecorator:
    """The mark of a test that runs these commands: ``printed`` has each of them on a line."""
    printed = "\n".join(command(page, each) for each in beginnings)
    return pytest.mark.parametrize("printed", [printed], ids=[pathlib.Path(page).stem])


def replaced(printed: str, changes: Mapping[str, str]) -> str:
    """The commands with other names, ports and numbers than the page's."""
    for old, new in changes.items():
        assert old in printed, f"no {old!r} in {printed!r}"
        printed = printed.replace(old, new)
    return printed


def shell(script: str, folder: pathlib.Path, timeout_s: float = DEADLINE, **more: str) -> str:
    """What a shell in the folder prints; fails with it if a command does."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | interpreters.environment() | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout
