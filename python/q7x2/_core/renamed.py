"""Old names raise an error that says the new one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def renamed(**names: str) -> Callable[[Class], Class]:
    """A class decorator: an argument of an old name raises TypeError, which says the new one."""

    def decorate(kind: Class) -> Class:
        init = kind.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **given: Any) -> None:
            for old, new in names.items():
                if old in given:
                    raise TypeError(f"{kind.__name__} has no argument {old!r}: use {new!r}")
            init(self, *args, **given)

        kind.__init__ = checked  # type: ignore[misc]
        return kind

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
