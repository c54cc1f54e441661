"""Turns the text of docstrings into Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

WIDTH = 118
# Code, or a role such as :class:`DiLoCo`.
_CODE = re.compile(r"``(.+?)``|:(class|func|meth|mod|attr|data):`~?\.?([^`]+)`", re.S)
_Q7X2 = re.compile(r"\bq7x2\.\w+(?:\.\w+)?")
_PAGE = re.compile(r"(?<![\w/`])docs/([\w/]+\.md)")
_LITERAL = re.compile(r"::\n\n((?:[ ]+\S.*(?:\n|$)|\n)+)")

Link = Callable[[str], "str | None"]
"""The target of a public name, or None if it has no entry."""


def markdown(text: str, link: Link, indent: str = "", docs: str = "../") -> str:
    """The text as Markdown, with all lines behind the first one indented.

    Args:
        text: Paragraphs, lists, examples behind ``>>>``, and literal blocks behind ``::``.
        link: Finds the targets of names in roles such as ``:class:`DiLoCo` ``.
        indent: What the lines behind the first one begin with; further blocks, with twice of it.
        docs: The way from the page to the folder docs/.
    """
    text = _PAGE.sub(rf"[\1]({docs}\1)", text)
    blocks = [_block(each, link, len(indent)) for each in _blocks(text)]
    lines = blocks[0].replace("\n", f"\n{indent}") if blocks else ""
    # The site's Markdown wants four spaces before further blocks of a list's item.
    further = [textwrap.indent(each, 2 * indent) for each in blocks[1:]]
    return "\n\n".join([lines, *further])


def names_in(text: str) -> list[str]:
    """The names in roles of classes and functions, and all that begin with ``q7x2.``."""
    roles = [match[3] for match in _CODE.finditer(text) if match[2] in ("class", "func")]
    return [name for name in roles if not name.startswith("q7x2.")] + _Q7X2.findall(text)


def _blocks(text: str) -> list[str]:
    """Paragraphs; code has fences around it, and may have empty lines inside."""
    found: list[str] = []
    rest = text
    while literal := _LITERAL.search(rest):
        found += re.split(r"\n{2,}", rest[: literal.start()].strip() + ":")
        found.append(f"```python\n{textwrap.dedent(literal[1]).strip()}\n```")
        rest = rest[literal.end() :]
    found += re.split(r"\n{2,}", rest.strip())
    return [each for each in found if each]


def _block(text: str, link: Link, indent: int) -> str:
    if text.startswith("```"):
        return text
    if text.startswith(">>>"):
        return _example(text)
    if re.match(r"[-*] ", text):
        items = re.split(r"\n(?=[-*] )", text)
        return "\n".join(_filled(_inline(each, link), indent, "  ") for each in items)
    return _filled(_inline(text, link), indent)


def _filled(text: str, indent: int, hanging: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH - indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _example(text: str) -> str:
    """Without prompts, unless the example has output."""
    lines = text.splitlines()
    if any(not line.startswith((">>>", "...")) for line in lines):
        return f"```pycon\n{text}\n```"
    return "```python\n" + "\n".join(line[4:] for line in lines) + "\n```"


def _inline(text: str, link: Link) -> str:
    """Roles and code; ``q7x2.NAME`` is a link as well if it is a public name."""

    def code(match: re.Match[str]) -> str:
        name = " ".join((match[1] or match[3]).split())
        target = None
        if match[2] in ("class", "func") or name.startswith("q7x2."):
            target = link(name)
        elif match[2]:  # a method: its class
            target = link(name.rpartition(".")[0])
        return f"[`{name}`]({target})" if target else f"`{name}`"

    # Outside of code, Markdown would read asterisks between two words.
    parts = re.split(rf"({_CODE.pattern})", text, flags=re.S)[:: _CODE.groups + 2]
    codes = [code(match) for match in _CODE.finditer(text)]
    parts = [re.sub(r"(?<=\w)\*+(?=\w)", _escaped, each) for each in parts]
    return "".join(part + code for part, code in zip(parts, [*codes, ""], strict=True))


def _escaped(match: re.Match[str]) -> str:
    return "\\*" * len(match[0])
