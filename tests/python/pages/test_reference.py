"""docs/reference.md and docs/commands.md list the variables and commands of the code, no others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest
from harness import ROOT
from q7x2 import cli

REFERENCE = (ROOT / "docs" / "reference.md").read_text()
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text()


def section(title: str, page: str = REFERENCE) -> str:
    """The text below a heading, up to the next one of its level or a higher one."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,6}} |\Z)", page, re.M | re.S)
    assert found is not None, f"there is no section {title!r}"
    level = len(found[1])
    rest = page[found.start(2) :]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[str]:
    """The code in the first column of the tables of ``text``."""
    cells = re.findall(r"^\| (`[^|]*?) \|", text, re.M)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


# ---- environment variables -----------------------------------------------------------------------


def variables_of_the_code() -> set[str]:
    """What C++ and Python ask the environment for."""
    asks = re.compile(
        r'(?:getenv|environment|environ\.get|in)\(?\s*"([A-Z][A-Z0-9_]+)"|environ(?:\.pop\(|\[)'
        r'"([A-Z][A-Z0-9_]+)"|"(Q7X2_[A-Z_]+)"'
    )
    names: set[str] = set()
    for folder, pattern in (("csrc", "*.cpp"), ("csrc", "*.h"), ("python", "*.py")):
        for path in (ROOT / folder).rglob(pattern):
            if path == ROOT / "python" / "q7x2" / "_core" / "variables.py":
                continue  # lists names, and reads none; test_variables.py compares it
            for found in asks.findall(path.read_text()):
                names |= {name for name in found if name}
    return names


def test_every_variable_of_q7x2_is_on_the_page() -> None:
    listed = {name for name in rows(section("Environment variables")) if name.startswith("Q7X2_")}
    used = {name for name in variables_of_the_code() if name.startswith("Q7X2_")}
    assert listed == used


def test_every_variable_of_others_is_on_the_page() -> None:
    text = section("Environment variables")
    used = {name for name in variables_of_the_code() if not name.startswith(("Q7X2_", "UCX_"))}
    assert {"MASTER_ADDR", "XDG_CACHE_HOME"} <= used, "the search finds nothing"
    asked_by_the_command = {"WORLD_SIZE"}  # `fabric probe` under torchrun
    assert {name for name in used if f"`{name}`" not in text} <= asked_by_the_command


# ---- commands ------------------------------------------------------------------------------------


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ("q7x2",)
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command without subcommands, by its whole name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from leaves(child, (*path, name))
            return
    yield " ".join(path), parser


COMMANDS = dict(leaves(cli.make_parser()))


def test_every_command_has_a_section() -> None:
    assert re.findall(r"^## `(q7x2 .+)`$", COMMANDS_PAGE, re.M) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_of_a_command(command: str) -> None:
    arguments = set()
    for action in COMMANDS[command]._actions:
        if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            arguments |= set(action.option_strings) or {str(action.metavar or action.dest).upper()}
    assert set(rows(section(f"`{command}`", COMMANDS_PAGE))) == arguments
