"""What the pages say of one public name, and what its docstrings lack."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reference.call import Call, Option, call_of, differences, doc_of, type_text
from reference.docstring import Docstring
from reference.names import Name
from reference.source import as_python, attribute_texts, raises

_MADE_BY = re.compile(r"\b(?:made|returned) by\s+:\w+:", re.I)
_WITHOUT_PARAMETERS = ("(*args, **kwargs)", "(*args, **options)")  # interfaces, to be subclassed
_OF_PYTHON = (TypeError, ValueError, RuntimeError, OSError)


@dataclass
class Entry:
    """A public name with all that belongs to it.

    Attributes:
        name: The name.
        call: Its signature and text.
        bases: The names of base classes that users know.
        attributes: What is stored; of a class whose parameters are stored, the others.
        properties: What is computed.
        methods: Without those that a public base class has.
        problems: What docstrings lack, one sentence each.
    """

    name: Name
    call: Call
    bases: list[str] = field(default_factory=list)
    attributes: list[Option] = field(default_factory=list)
    properties: list[Option] = field(default_factory=list)
    methods: list[Call] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def entry_of(name: Name, public: list[type]) -> Entry:
    """Look at a public name.

    Args:
        name: The name.
        public: All public classes. What one of them says of a method counts for those that
            inherit or implement it.
    """
    value = as_python(name.value)
    problems: list[str] = []
    doc = doc_of(value, name.path, problems)
    if not inspect.isclass(value):
        call = call_of(name.path, name.path, value, doc, problems, is_method=False)
        problems += silent(name.path, doc, value)
        return Entry(name, call, problems=problems)
    described = attribute_texts(value) | doc.section("Attributes")
    doc.sections["Attributes"] = described
    call = Call(name.path, doc)
    if _is_made_by_programs(value, doc):
        _inherit(value, doc)
        call = call_of(name.path, name.path, value, doc, problems, is_method=False)
        problems += silent(name.path, doc, *_constructors(value))
        if call.signature in _WITHOUT_PARAMETERS:
            call.signature = None
    elif dataclasses.is_dataclass(value) and not _MADE_BY.search(doc.text):
        fields = [each.name for each in dataclasses.fields(value) if each.name[0] != "_"]
        problems += differences(name.path, "Attributes", fields, described)
    elif issubclass(value, enum.Enum):
        problems += differences(name.path, "Attributes", value.__members__, described)
    entry = Entry(name, call, problems=problems)
    entry.bases = [
        each.__name__ for each in value.__mro__[1:] if each in public or each in _OF_PYTHON
    ]
    parameters = {option.name for option in call.options}
    types = _annotations(value)
    entry.attributes = [
        Option(key, text, types.get(key, ""))
        for key, text in described.items()
        if key not in parameters
    ]
    for member, found in _members(value, public):
        _add_member(entry, member, found)
    return entry


def silent(path: str, doc: Docstring, *functions: Any) -> list[str]:
    """A problem if one of the functions raises errors of which ``doc`` says nothing."""
    if doc.section("Raises") or not any(map(raises, functions)):
        return []
    return [f"{path}: it raises errors, and has no section Raises"]


def _constructors(value: type) -> Iterator[Any]:
    for home in value.__mro__:
        if home.__module__.startswith("q7x2"):
            for name in ("__init__", "__post_init__", "__new__"):
                found = vars(home).get(name)
                if inspect.isfunction(found) and found.__module__ != "typing":  # of a protocol
                    yield found


def _is_made_by_programs(value: type, doc: Docstring) -> bool:
    if issubclass(value, Exception | enum.Enum) or _MADE_BY.search(doc.text):
        return False
    # A dataclass without arguments is a result.
    return not (dataclasses.is_dataclass(value) and doc.section("Attributes"))


def _inherit(value: type, doc: Docstring) -> None:
    """The fields of a dataclass are parameters, also those of its bases."""
    bases = [each for each in value.__mro__[1:] if dataclasses.is_dataclass(each)]
    if not dataclasses.is_dataclass(value):
        return
    for title in ("Args", "Raises"):
        items: dict[str, str] = {}
        for base in reversed(bases):
            items |= doc_of(base, base.__name__, []).section(title)
        if items:
            doc.sections[title] = items | doc.section(title)


def _annotations(value: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in reversed(value.__mro__):
        if each.__module__.startswith("q7x2"):
            found |= {k: type_text(v) for k, v in inspect.get_annotations(each).items()}
    return found


def _members(value: type, public: list[type]) -> Iterator[tuple[str, Any]]:
    """Methods and properties that have no other entry: those of public bases are with these.

    A protocol has none on its page: q7x2 calls them, and not its users.
    """
    if getattr(value, "_is_protocol", False):
        return
    implemented = [each for each in public if each is not value and _implements(value, each)]
    others = [each for each in value.__mro__ if not each.__module__.startswith("q7x2")]
    seen: set[str] = set()
    for home in value.__mro__:
        if not home.__module__.startswith("q7x2") or (home is not value and home in public):
            continue
        for member, found in vars(home).items():
            bare = getattr(found, "__func__", found)
            if member.startswith("_") or member in seen:
                continue
            if not isinstance(bare, property) and not inspect.isfunction(bare):
                continue
            seen.add(member)
            described = any(getattr(vars(each).get(member), "__doc__", "") for each in implemented)
            if bare.__doc__ or not (described or any(hasattr(each, member) for each in others)):
                yield member, bare


def _implements(value: type, interface: type) -> bool:
    if interface in value.__mro__:
        return True
    own = [name for name in vars(interface) if not name.startswith("_")]
    return getattr(interface, "_is_protocol", False) and all(hasattr(value, name) for name in own)


def _add_member(entry: Entry, member: str, found: Any) -> None:
    path = f"{entry.name.path}.{member}"
    doc = doc_of(found, path, entry.problems)
    if not isinstance(found, property):
        title = f"{entry.name.last}.{member}"
        entry.methods.append(call_of(title, path, found, doc, entry.problems, is_method=True))
        if " raises " not in doc.text.lower():  # such as "Raises the same as"
            entry.problems += silent(path, doc, found)
        return
    result = inspect.signature(found.fget).return_annotation if found.fget else ""
    entry.properties.append(Option(member, doc.text, type_text(result)))
    entry.problems += [f"{path}: a property has no section {title}" for title in doc.sections]
