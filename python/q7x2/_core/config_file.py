"""``Q7X2_CONFIG``: a TOML file that holds what the environment variables of q7x2 hold.

An entry has the name of a variable without ``Q7X2_``, in lower case: ``silence = 5``. A variable
that is set in the environment counts more than the file. The file is read once, before anything
else of q7x2 reads a variable; its entries then become variables of the process.
"""

from __future__ import annotations

import difflib
import functools
import os
import pathlib
from typing import Any

from q7x2._core.variables import KNOWN

VARIABLE = "Q7X2_CONFIG"
_PREFIX = "Q7X2_"
ENTRIES = {name.removeprefix(_PREFIX).lower(): name for name in KNOWN if name != VARIABLE}
"""Variables by the names of their entries."""


def read(path: pathlib.Path) -> dict[str, str]:
    """The values that a file gives, by variable.

    Raises:
        ValueError: It is no TOML file; an entry has an unknown name, or a value that is no text,
            number or truth.
        OSError: It cannot be read.
    """
    from q7x2._core import toml

    return {
        _variable(path, name): _text(path, name, value) for name, value in toml.read(path).items()
    }


def apply() -> None:
    """Set the variables that the file of ``Q7X2_CONFIG`` gives, unless they are set.

    Raises:
        ValueError: The file cannot be read, or has a wrong entry.
    """
    if path := os.environ.get(VARIABLE):
        _apply(path)


@functools.cache
def _apply(path: str) -> None:
    try:
        values = read(pathlib.Path(path))
    except OSError as error:
        raise ValueError(f"{VARIABLE}: cannot read {path!r}: {error.strerror}") from error
    for variable, value in values.items():
        if not os.environ.get(variable):
            os.environ[variable] = value


def _variable(path: pathlib.Path, name: str) -> str:
    if name in ENTRIES:
        return ENTRIES[name]
    near = difflib.get_close_matches(name.lower().removeprefix("q7x2_"), ENTRIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(ENTRIES)}"
    raise ValueError(f"{path}: there is no entry {name!r}; {hint}")


def _text(path: pathlib.Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float, str)) and value != "":
        return str(value)
    raise ValueError(f"{path}: {name}: expected a text, a number, true or false, got {value!r}")
