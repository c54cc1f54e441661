"""The packages of ``q7x2``: one way down, no circle, and lists of public names that are true."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
from collections.abc import Iterator

import pytest
import q7x2

ROOT = pathlib.Path(q7x2.__file__).parent

# A package or module imports only those of a lower level, and itself.
LEVELS = {
    "_core": 1,
    "collectives": 2,
    "embedding": 2,
    "fabric": 2,
    "policy": 2,
    "tensor_parallel": 2,
    "functional": 3,
    "hooks": 3,
    "late": 3,
    "ledger": 3,
    "plan": 3,
    "cadence": 4,
    "comm_hooks": 4,
    "fsdp": 4,
    "overlap": 4,
    "observe": 4,
    "experiment": 4,
    "report": 4,
    "_backend": 5,
    "_attach": 5,
    "_hook_text": 5,
    "_attach_all": 6,
    "_autoload": 7,  # what `import torch` runs
    "groups": 8,
    "torchft": 9,
    "optim": 9,
    "cli": 10,
    "__main__": 11,
}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """By dotted name below ``q7x2``, without the package itself."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(path: pathlib.Path, *, of_types: bool) -> Iterator[str]:
    """The dotted names below ``q7x2`` that a file imports anywhere, in functions too.

    ``of_types``: also those that only type checkers read.
    """
    known = modules()

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                if of_types:
                    yield from walk(child)
            elif isinstance(child, ast.ImportFrom):
                home = child.module or ""
                assert child.level == 0, f"{path}: a relative import"
                if home == "q7x2" or home.startswith("q7x2."):
                    for alias in child.names:
                        for name in (f"{home}.{alias.name}", home):
                            if (short := name.removeprefix("q7x2").lstrip(".")) in known:
                                yield short
                                break
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if (short := alias.name.removeprefix("q7x2.")) in known:
                        yield short
            else:
                yield from walk(child)

    yield from walk(ast.parse(path.read_text()))


def test_every_package_has_a_level() -> None:
    assert sorted({name.partition(".")[0] for name in modules()}) == sorted(LEVELS)


def test_imports_go_down() -> None:
    wrong = []
    for name, path in modules().items():
        package = name.partition(".")[0]
        for other in imports(path, of_types=True):
            target = other.partition(".")[0]
            if target != package and LEVELS[target] >= LEVELS[package]:
                wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: set(imports(path, of_types=False)) - {name} for name, path in modules().items()}
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, {name: sorted(targets & graph.keys()) for name, targets in graph.items()}


def typed_names(path: pathlib.Path) -> dict[str, str]:
    """What type checkers see: the module of each public name."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    for alias in each.names:
                        assert alias.asname == alias.name, f"{path}: {alias.name} is not public"
                        found[alias.name] = str(each.module)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_for_and_what_it_has(package: str) -> None:
    module = importlib.import_module(f"q7x2.{package}")
    assert module.__doc__
    table = getattr(module, "_NAMES", {})
    homes = {name: f"q7x2.{package}.{home}" for home, names in table.items() for name in names}
    assert typed_names(ROOT / package / "__init__.py") == homes
    # Else the name would be the function until the module is imported, and the module afterwards.
    files = {path.stem for path in (ROOT / package).glob("*.py")}
    assert not files & homes.keys()
    for name in homes:
        assert getattr(module, name).__name__ == name
    if homes:
        assert dir(module) == sorted(homes)
        with pytest.raises(AttributeError, match=f"q7x2.{package}.*'nothing'"):
            getattr(module, "nothing")  # noqa: B009


def test_a_name_at_the_top_is_that_of_its_package() -> None:
    for name, home in typed_names(ROOT / "__init__.py").items():
        package = home.removeprefix("q7x2.")
        if package in PACKAGES:
            of_package = getattr(importlib.import_module(f"q7x2.{package}"), name)
            assert getattr(q7x2, name) is of_package
