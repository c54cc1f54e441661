"""Command lines: options that are declared, and types that refuse nonsense with a text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tests.lab.command import explained


def option(default: Any = None, help: str | None = None, **given: Any) -> dict[str, Any]:
    """An option of a study; `given` is for argparse. A default of several values takes several."""
    return {"default": default, "help": help, **given}


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


def parse_size(text: str) -> int:
    """`"64K"` -> 65536; the units are powers of 1024."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isdigit():
        raise ValueError(f"a size is a number of bytes with K, M or G at most; got {text!r}")
    return int(digits) * scale


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
