"""The public names of ``q7x2``, each once: under its shortest path, on the page of its package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TOP = "q7x2"


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        path: As a program writes it, such as ``q7x2.attach``.
        value: What it stands for.
        page: The module on whose page it is.
        aliases: Other names of the same module for the same thing.
    """

    path: str
    value: Any
    page: str
    aliases: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """Its last part."""
        return self.path.rpartition(".")[2]


def public_modules() -> list[types.ModuleType]:
    """``q7x2`` and its packages and modules that list public names, ``q7x2`` first."""
    _stand_in_for_torchft()
    top = importlib.import_module(TOP)
    found = [top]
    for each in sorted(pkgutil.iter_modules(top.__path__), key=lambda each: each.name):
        if not each.name.startswith("_"):
            module = importlib.import_module(f"{TOP}.{each.name}")
            if getattr(module, "__all__", None):
                found.append(module)
    return found


def _stand_in_for_torchft() -> None:
    """torchft is optional. The pages show nothing of it, so they are equal with a stand-in."""
    stand_in: Any = types.ModuleType("torchft.process_group")
    stand_in.ProcessGroupWrapper = type("ProcessGroupWrapper", (), {})
    sys.modules["torchft"] = types.ModuleType("torchft")
    sys.modules[stand_in.__name__] = stand_in


def public_names() -> Iterator[Name]:
    """All names but those of modules and values without a docstring of their own."""
    modules = public_modules()
    seen: set[int] = set()
    for module in modules:
        for last in module.__all__:
            value = getattr(module, last)
            if inspect.ismodule(value) or isinstance(value, str) or id(value) in seen:
                continue
            seen.add(id(value))
            aliases = [
                f"{module.__name__}.{other}"
                for other in module.__all__
                if other != last and getattr(module, other) is value
            ]
            page = _page(modules, last, value)
            yield Name(f"{module.__name__}.{last}", value, page, tuple(aliases))


def _page(modules: list[types.ModuleType], last: str, value: Any) -> str:
    """The package that has the name. ``q7x2`` only has what no package has."""
    for module in modules[1:]:
        if last in module.__all__ and getattr(module, last) is value:
            return module.__name__
    return TOP
