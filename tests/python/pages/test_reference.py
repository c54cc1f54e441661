"""docs/reference.md lists what the code has, and nothing else."""

from __future__ import annotations

import argparse
import inspect
import operator
import re
from collections.abc import Iterator
from typing import Any

import pytest
import q7x2
from harness import ROOT
from q7x2 import cli

PAGE = (ROOT / "docs" / "reference.md").read_text()
HOOKS = ("Allreduce", "Quantize", "PowerSGD", "TopK", "OneBit", "SignSGD", "EF21", "Compose")
HOOKS += ("hooks.Compressed", "BlockSparse")


def section(title: str) -> str:
    """The text below a heading, up to the next one of its level or a higher one."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,6}} |\Z)", PAGE, re.M | re.S)
    assert found is not None, f"docs/reference.md has no section {title!r}"
    level = len(found[1])
    rest = PAGE[found.start(2) :]
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


# ---- options in Python ---------------------------------------------------------------------------


def signature(function: Any, name: str) -> str:
    full = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in full.parameters.values()]
    return f"{name}{full.replace(parameters=bare, return_annotation=full.empty)}"


def calls() -> Iterator[tuple[str, str, Any]]:
    """Section, name and object of everything whose signature the page has."""
    coded = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
    for title, names in {
        "Hooks": (*HOOKS, "Sharded"),
        "Policies": (
            *("policy.ErrorBudget", "policy.BitAllocation", "policy.Accordion"),
            *("policy.Accumulate", "advise"),
        ),
        "Late workers": ("late.StaleSGD", "late.FollowLag", "cadence.MicroBatches"),
        "Optimizers with a hook": ("optim.OneBitAdam", "optim.DistributedLion"),
        "Parallel styles": ("tensor_parallel.ColwiseOverlap", "tensor_parallel.RowwiseOverlap"),
        "Calls": ("attach", *coded, "tune"),
    }.items():
        for name in names:
            yield title, f"q7x2.{name}", operator.attrgetter(name)(q7x2)


@pytest.mark.parametrize(
    ("where", "name", "function"),
    list(calls()),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_signatures_and_options(where: str, name: str, function: Any) -> None:
    text = section(where)
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert signature(function, name) in " ".join(block.split()).replace("( ", "(")
    options = set(inspect.signature(function).parameters)
    assert options <= set(rows(text)), "an option has no row"


def test_every_public_hook_has_a_signature() -> None:
    asked = ("lanes", "factory", "recipe")  # of every HookOptions
    classes = {
        name
        for name in q7x2.hooks.__all__
        if name != "HookOptions" and all(hasattr(getattr(q7x2.hooks, name), each) for each in asked)
    }
    assert classes == {name.removeprefix("hooks.") for name in HOOKS}


def test_options_of_groups() -> None:
    text = section("Calls")
    declared = re.search(r"`q7x2\.Options\((.*?)\)`", text)
    assert declared is not None
    made = q7x2.Options()
    for option in declared[1].split(", "):
        name, default = option.split("=")
        assert getattr(made, name) == eval(default)
        assert name in rows(text)
    names = re.findall(r"(\w+): (?:bool|str)", q7x2.Options.__init__.__doc__ or "")
    assert names == [option.split("=")[0] for option in declared[1].split(", ")]


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
    assert re.findall(r"^### `(q7x2 .+)`$", PAGE, re.M) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_of_a_command(command: str) -> None:
    arguments = set()
    for action in COMMANDS[command]._actions:
        if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            arguments |= set(action.option_strings) or {str(action.metavar or action.dest).upper()}
    assert set(rows(section(f"`{command}`"))) == arguments
