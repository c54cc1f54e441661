"""Old names raise an error that says the new one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)
Taker = TypeVar("Taker", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[Taker], Taker]:
    """A decorator of a class or a function: an argument of an old name raises TypeError.

    Args:
        names: What to use instead, by old name.
    """

    def decorate(taker: Taker) -> Taker:
        called: Any = taker.__init__ if isinstance(taker, type) else taker  # type: ignore[misc]

        @functools.wraps(called)
        def checked(*args: Any, **given: Any) -> Any:
            for old, new in names.items():
                if old in given:
                    raise TypeError(f"{taker.__name__} has no argument {old!r}: use {new!r}")
            return called(*args, **given)

        if not isinstance(taker, type):
            return checked  # type: ignore[return-value]
        taker.__init__ = checked  # type: ignore[misc]
        return taker

    return decorate


def renamed_attributes(**names: str) -> Callable[[Class], Class]:
    """A class decorator: an old name raises AttributeError, which says the new one."""

    def decorate(kind: Class) -> Class:
        def missing(self: Any, name: str) -> Any:
            if name in names:
                raise AttributeError(
                    f"{type(self).__name__} has no attribute {name!r}: use {names[name]!r}"
                )
            return object.__getattribute__(self, name)

        kind.__getattr__ = missing  # type: ignore[attr-defined]
        return kind

    return decorate
