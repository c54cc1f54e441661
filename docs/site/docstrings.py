"""A griffe extension: reads two habits of the docstrings that Markdown does not have.

Examples that begin with ``>>>`` become code. Roles such as ``:class:`Quantize` `` become names.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)+", re.M)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?\.?([^`]+)`")


def _fenced(match: re.Match[str]) -> str:
    indent = re.match(r" *", match[0])
    assert indent is not None
    code = f"```pycon\n{textwrap.dedent(match[0]).rstrip()}\n```"
    return textwrap.indent(code, indent[0]) + "\n"


class Docstrings(griffe.Extension):
    """Changes each docstring after it has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(_fenced, text)
