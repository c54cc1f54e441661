"""Command lines: options that are declared, and types that refuse nonsense with a text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from q7x2._core.units import parse_size

from tests.lab.command import explained


def option(default: Any = None, help: str | None = None, **given: Any) -> dict[str, Any]:
    """An option of a study; `given` is for argparse. A default of several values takes several."""
    return {"default": default, "help": help, **given}


def parser(command: str, about: str | None, options: Mapping[str, Any]) -> argparse.ArgumentParser:
    """The command line of `python -m COMMAND`, with these options."""
    made = argparse.ArgumentParser(
        prog=f"python -m {command}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(made, options)
    return made


def add_options(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Adds options; their types are those of their defaults."""
    for name, each in options.items():
        given = dict(each) if isinstance(each, dict) else option(each)
        default = given["default"]
        if isinstance(default, bool):
            given["action"] = "store_true"
        elif "type" not in given:
            if isinstance(default, (list, tuple)):
                given.setdefault("nargs", "+")
                default = default[0]
            given["type"] = str if default is None else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **given)


def chosen(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of some options, by name."""
    return {name: getattr(args, name) for name in names}


def names(text: str) -> tuple[str, ...]:
    """`"a, b"` -> ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


size = explained(parse_size)


@explained
def sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_size(part) for part in names(text))


@explained
def rank_counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in names(text))
    if not counts or min(counts) < 1:
        raise ValueError(f"numbers of ranks are 1 or more; got {text!r}")
    return counts
