"""Values of given types as JSON, and back: what another process sends runs no code here.

A type is an annotation: ``str``, ``bool``, ``int``, ``float``, ``None``, ``list[X]``,
``tuple[X, Y]``, ``tuple[X, ...]``, ``dict[K, V]``, ``X | None``, a dataclass, a ``NamedTuple``, or
``Any`` for what JSON itself can say. Every part of a text is checked before a value is made of it.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

_DEEPEST = 64


class MalformedMessageError(RuntimeError):
    """What another rank has sent is not what the protocol says."""


def dumps(value: Any, kind: Any) -> str:
    """``value``, which is of type ``kind``, as JSON; TypeError where it is not."""
    return json.dumps(_plain(value, kind))


def loads(text: str | bytes, kind: Any) -> Any:
    """The value of type ``kind`` that :func:`dumps` has written.

    Raises:
        MalformedMessageError: The text is something else; it names the part that is wrong.
    """
    try:
        parsed = parse(text)
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(f"expected JSON: {error}") from None
    return _made(parsed, kind, "the value", 0)


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError if it is invalid or names a field of an object twice."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {json.dumps(twice)} is named twice")
    return found


def _plain(value: Any, kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind in (str, bool, int, float, type(None)):
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _plain(value, _other_than_none(parts))
    if origin is list or (origin is tuple and parts[-1] is Ellipsis):
        return [_plain(each, parts[0]) for each in value]
    if origin is tuple:
        return [_plain(each, part) for each, part in zip(value, parts, strict=True)]
    if origin is dict:
        pairs = [(_plain(key, parts[0]), _plain(each, parts[1])) for key, each in value.items()]
        return dict(pairs) if parts[0] is str else [list(pair) for pair in pairs]
    return {name: _plain(getattr(value, name), each) for name, each in _fields(kind).items()}


def _made(parsed: Any, kind: Any, at: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise MalformedMessageError(f"{at}: nested too deeply")

    def require(holds: bool, expected: str) -> None:
        if not holds:
            got = json.dumps(parsed)
            raise MalformedMessageError(
                f"{at}: expected {expected}, got {got if len(got) <= 60 else got[:60] + '...'}"
            )

    def inside(each: Any, part: Any, where: str) -> Any:
        return _made(each, part, f"{at}{where}", depth + 1)

    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return parsed
    if kind in _IS:
        is_it, expected = _IS[kind]
        require(is_it(parsed), expected)
        return float(parsed) if kind is float else parsed
    if origin in (Union, types.UnionType):
        return None if parsed is None else inside(parsed, _other_than_none(parts), "")
    if origin is list or (origin is tuple and parts[-1] is Ellipsis):
        require(isinstance(parsed, list), "a list")
        return origin(inside(each, parts[0], f"[{i}]") for i, each in enumerate(parsed))
    if origin is tuple:
        require(isinstance(parsed, list) and len(parsed) == len(parts), f"{len(parts)} values")
        return tuple(inside(each, parts[i], f"[{i}]") for i, each in enumerate(parsed))
    if origin is dict and parts[0] is str:
        require(isinstance(parsed, dict), "an object")
        return {key: inside(each, parts[1], f"[{key!r}]") for key, each in parsed.items()}
    if origin is dict:
        require(isinstance(parsed, list), "a list of pairs")
        pair = types.GenericAlias(tuple, parts)
        return dict(inside(each, pair, f"[{i}]") for i, each in enumerate(parsed))
    names = _fields(kind)
    require(
        isinstance(parsed, dict) and parsed.keys() == names.keys(),
        f"an object of {', '.join(names)}",
    )
    return kind(**{name: inside(parsed[name], names[name], f".{name}") for name in names})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_IS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: _is_number(value) and isinstance(value, int), "an integer"),
    float: (_is_number, "a number"),
    type(None): (lambda value: value is None, "null"),
}


def _other_than_none(parts: tuple[Any, ...]) -> Any:
    (part,) = (each for each in parts if each is not type(None))
    return part


def _fields(kind: Any) -> dict[str, Any]:
    """The fields that make a dataclass or a NamedTuple, with their types."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}
    names: tuple[str, ...] = kind._fields
    return {name: hints[name] for name in names}
