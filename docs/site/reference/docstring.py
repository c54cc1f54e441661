"""Reads docstrings: text, and the sections ``Args``, ``Attributes``, ``Returns`` and ``Raises``."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_TITLE = re.compile(rf"^({'|'.join(SECTIONS)}):$", re.M)
# `name: text`, or `name (type): text` as pybind11's classes have it.
_ITEM = re.compile(r"^(\*{0,2}[\w.]+)(?: \([^)]*\))?: *(.*)$")


@dataclass
class Docstring:
    """A docstring in parts. All texts are those of the source, without their indentation."""

    text: str = ""
    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    """``Args``, ``Attributes`` and ``Raises`` by name; ``Returns`` and ``Yields`` under ``""``."""

    def section(self, title: str) -> dict[str, str]:
        """The items of a section; empty if there is no such section."""
        return self.sections.get(title, {})

    @property
    def summary(self) -> str:
        """The first paragraph, in one line."""
        return " ".join(self.text.partition("\n\n")[0].split())


def parse(text: str | None) -> Docstring:
    """Take a docstring apart.

    Raises:
        ValueError: A line of a section belongs to no item.
    """
    parts = _TITLE.split(inspect.cleandoc(text or ""))
    result = Docstring(parts[0].strip())
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        block, tail = _indented(body)
        if tail:  # text that follows a section
            result.text = f"{result.text}\n\n{tail}"
        items = {"": block} if title in ("Returns", "Yields") else _items(block)
        result.sections.setdefault(title, {}).update(items)
    return result


def _indented(body: str) -> tuple[str, str]:
    """The indented lines at the beginning of ``body``, and what follows them."""
    lines = body.strip("\n").splitlines()
    end = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    return inspect.cleandoc("\n".join(["", *lines[:end]])), "\n".join(lines[end:]).strip()


def _items(block: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in block.splitlines():
        start = _ITEM.match(line)
        if start is not None:
            current = found.setdefault(start[1], [])
            current.append(start[2])
        elif current is None or (line and not line[0].isspace()):
            raise ValueError(f"{line!r} belongs to no item; does the line before it lack a colon?")
        else:
            current.append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in found.items()}
