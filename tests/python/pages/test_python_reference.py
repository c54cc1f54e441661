"""docs/reference/ has every public name, and docstrings say all that its pages need."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import q7x2
from harness import ROOT
from q7x2._core.option_checks import check_whole
from reference.call import Call, call_of, doc_of
from reference.docstring import parse
from reference.entry import silent
from reference.markdown import markdown, names_in

LIST = (ROOT / "docs" / "reference.md").read_text()
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}


def test_docstrings_are_complete_and_pages_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/site/write_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_list_has_every_name_of_the_top() -> None:
    listed = set(re.findall(r"^\| \[`(q7x2\.[\w.]+)`\]", LIST, re.M))
    modules = {each.name for each in pkgutil.iter_modules(q7x2.__path__)}
    names = {name for name in q7x2.__all__ if name not in modules | {"__version__"}}
    assert {f"q7x2.{name}" for name in names} <= listed


def test_every_name_of_a_package_is_on_one_page() -> None:
    headings = [name for page in PAGES.values() for name in re.findall(r"^## `(.+)`$", page, re.M)]
    assert len(headings) == len(set(headings))
    lasts = {name.rpartition(".")[2] for name in headings}
    for each in pkgutil.iter_modules(q7x2.__path__):
        if not each.name.startswith("_") and each.name != "torchft":
            module = importlib.import_module(f"q7x2.{each.name}")
            for name in getattr(module, "__all__", ()):
                aliases = {getattr(getattr(module, name), "__name__", name), name}
                assert aliases & lasts, f"{each.name}.{name}"
    assert "q7x2.torchft.ProcessGroupQ7x2" in headings


def test_a_second_name_is_listed_with_the_first() -> None:
    assert "| [`q7x2.comm_hooks.powersgd_hook`](" in LIST
    assert "**Also called** `q7x2.comm_hooks.powersgd_hook`" in PAGES["comm_hooks"]


def test_methods_of_a_protocol_are_not_for_users() -> None:
    assert "## `q7x2.hooks.HookOptions`" in PAGES["hooks"]
    assert "`HookOptions." not in PAGES["hooks"]


def test_no_page_shows_an_address() -> None:
    for name, page in PAGES.items():
        assert " at 0x" not in page, name


# ---- what the generator makes of docstrings ------------------------------------------------------


def called(function: Any, *, is_method: bool = False) -> tuple[Call, list[str]]:
    problems: list[str] = []
    doc = doc_of(function, "f", problems)
    return call_of("f", "f", function, doc, problems, is_method=is_method), problems


def test_a_parameter_with_its_type_default_and_text() -> None:
    def function(size: int, *names: str, codec: str = "int8", **more: float) -> list[int]:
        """Count.

        Args:
            size: Bytes.
            codec: The codec's name,
                in two lines.
        """
        return [size, len(names), len(codec), len(more)]

    call, problems = called(function)
    assert problems == []
    assert call.signature == '(size, *names, codec="int8", **more)'
    assert call.returns == "list[int]"
    size, codec = call.options
    assert (size.type, size.default, size.text) == ("int", "", "Bytes.")
    assert (codec.type, codec.default) == ("str", '"int8"')
    assert codec.text == "The codec's name,\nin two lines."


def test_what_is_missing_is_named() -> None:
    def function(size: int, names: str) -> None:
        """Count.

        Args:
            size:
            other: It does not exist.
        """

    assert called(function)[1] == [
        "f: Args does not describe names",
        "f: Args describes other, which does not exist",
        "f: Args says nothing about size",
    ]

    def bare() -> None: ...

    assert called(bare)[1] == ["f: it has no docstring"]


def test_errors_of_which_a_docstring_says_nothing_are_found() -> None:
    def checks(value: int) -> None:
        check_whole("value", value, 1)

    def raises(value: int) -> None:
        raise ValueError(value)

    def neither(value: int) -> None:
        raise NotImplementedError

    problem = "f: it raises errors, and has no section Raises"
    assert [silent("f", parse("Do."), each) for each in (checks, raises, neither)] == [
        [problem],
        [problem],
        [],
    ]
    assert silent("f", parse("Do.\n\nRaises:\n    ValueError: Always."), raises) == []


def test_a_method_may_speak_of_its_parameters() -> None:
    def method(self: Any, path: str) -> None:
        """Write it to ``path``."""

    assert called(method, is_method=True)[1] == []
    assert called(method)[1] == ["f: Args does not describe path"]


def test_the_text_that_a_dataclass_gets_is_no_docstring() -> None:
    @dataclass
    class Point:
        x: int

    problems: list[str] = []
    doc_of(Point, "Point", problems)
    assert problems == ["Point: it has no docstring"]


def test_text_behind_a_section_belongs_to_the_text() -> None:
    doc = parse("A.\n\nRaises:\n    ValueError: B.\n\n        C.\n\nD.")
    assert doc.text == "A.\n\nD."
    assert doc.sections == {"Raises": {"ValueError": "B.\n\nC."}}
    with pytest.raises(ValueError, match="belongs to no item"):
        parse("A.\n\nArgs:\n    no item here")


def test_docstrings_become_markdown() -> None:
    def link(name: str) -> str | None:
        return {"Quantize": "hooks.md#a", "q7x2.attach": "#b"}.get(name)

    text = "A :class:`Quantize` with ``x * y``, 2**31 and ``q7x2.attach``; see docs/hooks.md."
    assert markdown(text, link) == (
        "A [`Quantize`](hooks.md#a) with `x * y`, 2\\*\\*31 and [`q7x2.attach`](#b); see "
        "[hooks.md](../hooks.md)."
    )
    assert markdown(">>> a = 1\n>>> if a:\n...     b()", link) == (
        "```python\na = 1\nif a:\n    b()\n```"
    )
    assert markdown(">>> a\n1", link) == "```pycon\n>>> a\n1\n```"
    assert markdown("So::\n\n    a\n\n    b\n\nEnd.", link) == (
        "So:\n\n```python\na\n\nb\n```\n\nEnd."
    )
    assert markdown("A\nb.\n\n- c\n  d\n- e", link, "  ") == "A b.\n\n    - c d\n    - e"


def test_names_in_a_docstring() -> None:
    text = "A :class:`~q7x2.TopK`, :func:`attach`, ``q7x2.optim.KFAC``, ``step`` and :meth:`step`."
    assert names_in(text) == ["attach", "q7x2.TopK", "q7x2.optim.KFAC"]
