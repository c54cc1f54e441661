"""A function, a method or a constructor: its signature, and what is said of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reference.docstring import Docstring, parse


@dataclass
class Option:
    """A parameter, an attribute or an error.

    Attributes:
        name: Its name; that of ``*args`` and ``**kwargs`` has the stars.
        text: What is said of it.
        type: Empty if it is not known.
        default: As Python writes it; empty if there is none.
    """

    name: str
    text: str
    type: str = ""
    default: str = ""


@dataclass
class Call:
    """What can be called.

    Attributes:
        title: Its name, with that of the class if it is a method.
        doc: Its docstring.
        signature: From the bracket on, without types; None: programs do not call it.
        options: Its parameters.
        returns: The type of the result; empty if there is none.
    """

    title: str
    doc: Docstring
    signature: str | None = None
    options: list[Option] = field(default_factory=list)
    returns: str = ""


def doc_of(value: Any, path: str, problems: list[str]) -> Docstring:
    """The docstring of a class, function or property; adds to ``problems`` if there is none."""
    text = value.__doc__ or ""
    if inspect.isclass(value) and text.startswith(f"{value.__name__}("):
        text = ""  # what a dataclass has if its author wrote nothing
    try:
        doc = parse(text)
    except ValueError as error:
        problems.append(f"{path}: {error}")
        return Docstring()
    if not doc.text:
        problems.append(f"{path}: it has no docstring")
    elif not doc.summary.endswith((".", ":", ".)")):
        problems.append(f"{path}: the docstring does not begin with a sentence")
    return doc


def call_of(
    title: str, path: str, function: Any, doc: Docstring, problems: list[str], *, is_method: bool
) -> Call:
    """What the page says of ``function``.

    Args:
        title: What it is called on the page.
        path: What it is called in ``problems``.
        function: A function or class.
        doc: Its docstring.
        problems: What is missing is added here.
        is_method: If a method has no ``Args``, its text may speak of a parameter as ``name``.
    """
    signature = inspect.signature(function)
    implied = ("self", "cls")
    parameters = [each for name, each in signature.parameters.items() if name not in implied]
    names = {each.name: _starred(each) for each in parameters}
    items = doc.section("Args") or {
        each: text for each, text in doc.section("Attributes").items() if each in names
    }
    needed = {name for each, name in names.items() if f"``{each}``" not in doc.text}
    if items or not is_method:
        needed = {name for name in names.values() if name[0] != "*"} | (names.keys() & items)
        needed |= {name for name in names.values() if name in items}
    problems += differences(path, "Args", needed, items)
    options = [
        Option(
            names[each.name], items[names[each.name]], type_text(each.annotation), _default(each)
        )
        for each in parameters
        if names[each.name] in items
    ]
    result = signature.return_annotation
    returns = "" if inspect.isclass(function) or result is signature.empty else type_text(result)
    return Call(title, doc, _bracket(parameters), options, "" if returns == "None" else returns)


def differences(path: str, title: str, names: Iterable[str], items: dict[str, str]) -> list[str]:
    """What a section lacks, and what it has too much."""
    lacking = sorted(set(names) - items.keys())
    more = sorted(items.keys() - set(names))
    return [
        *(f"{path}: {title} does not describe {each}" for each in lacking),
        *(f"{path}: {title} describes {each}, which does not exist" for each in more),
        *(f"{path}: {title} says nothing about {name}" for name, text in items.items() if not text),
    ]


def _starred(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    return f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name


def _bracket(parameters: list[inspect.Parameter]) -> str:
    """The parameters with their defaults, as Python writes them."""
    parts: list[str] = []
    has_star = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not has_star:
            parts.append("*")
        has_star = has_star or each.kind in (each.VAR_POSITIONAL, each.KEYWORD_ONLY)
        default = _default(each)
        parts.append(f"{_starred(each)}={default}" if default else _starred(each))
    return f"({', '.join(parts)})"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return ""
    if repr(value) == "<factory>":  # of a dataclass
        return "{}" if "Mapping" in str(parameter.annotation) else "()"
    return written(value)


def written(value: Any) -> str:
    """A value as a program writes it; functions by their names, without addresses.

    Raises:
        ValueError: It cannot be written.
    """
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        inner = ", ".join(map(written, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if inspect.isfunction(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        raise ValueError(f"a default that cannot be written: {text}")
    return text.removeprefix("datetime.")


def type_text(annotation: Any) -> str:
    """A type without the names of modules."""
    if annotation is inspect.Parameter.empty:
        return ""
    if not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", annotation).replace("'", '"')
