"""Reads TOML files of users, and checks their entries one by one."""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: pathlib.Path) -> dict[str, Any]:
    """The entries of a file.

    Raises:
        ValueError: It is no TOML file.
        OSError: It cannot be read.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected TOML: {error}") from error
    return table


class Entries:
    """Takes entries out of a table. ``where``: what errors call the table.

    Raises:
        ValueError: In all methods: an entry is missing or wrong, and how.
    """

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        if not isinstance(table, Mapping):
            raise ValueError(f"{where}: expected a table, got {table!r}")
        self._left = dict(table)
        self.where = where

    def name(self, key: str) -> str:
        """What errors call an entry."""
        return f"{self.where}: {key}"

    def has(self, key: str) -> bool:
        """Whether an entry is there, and was not taken yet."""
        return key in self._left

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = math.inf
    ) -> float:
        """A finite number between ``least`` and ``most``; required if there is no default."""
        value = self._take(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            expected = (
                f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
            )
            raise ValueError(f"{self.name(key)}: expected a number {expected}, got {value!r}")
        return float(value)

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number of at least ``least``."""
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{self.name(key)}: expected a whole number of at least {least}, got {value!r}"
            )
        return value

    def text(
        self, key: str, default: str | None = None, choices: Sequence[str] | None = None
    ) -> str:
        """A text that is not empty, and one of ``choices`` if these are given."""
        value = self._take(key, default)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.name(key)}: expected a text, got {value!r}")
        if choices is not None and value not in choices:
            raise ValueError(f"{self.name(key)}: expected one of {list(choices)}, got {value!r}")
        return value

    def strings(self, key: str, default: Sequence[str] | None = None) -> list[str]:
        """A list of texts."""
        value = self._take(key, default)
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(isinstance(each, str) for each in value):
            raise ValueError(f"{self.name(key)}: expected a list of texts, got {value!r}")
        return list(value)

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        value = self._take(key, None)
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(type(each) is int for each in value):
            raise ValueError(f"{self.name(key)}: expected a list of whole numbers, got {value!r}")
        return list(value)

    def table(self, key: str) -> dict[str, Any]:
        """A table, empty if it is missing."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.name(key)}: expected a table, got {value!r}")
        return dict(value)

    def tables(self, key: str) -> list[Entries]:
        """An array of tables, empty if it is missing."""
        value = self._take(key, [])
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{self.name(key)}: expected [[{key}]] tables, got {value!r}")
        return [Entries(each, f"{self.name(key)}[{i}]") for i, each in enumerate(value)]

    def end(self) -> None:
        """Refuse entries that nobody has taken."""
        if self._left:
            raise ValueError(f"{self.where}: unknown entries {sorted(self._left)}")

    def _take(self, key: str, default: Any) -> Any:
        if key in self._left:
            return self._left.pop(key)
        if default is None:
            raise ValueError(f"{self.name(key)}: is missing")
        return default
