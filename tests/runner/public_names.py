"""The public functions and options of the product, found in its sources without importing them."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .paths import ROOT

PACKAGE = ROOT / "python" / "q7x2"
VARIABLE = re.compile(r"\bQ7X2_[A-Z][A-Z0-9_]*[A-Z0-9]\b")


@dataclasses.dataclass(frozen=True)
class Function:
    """A public function or method: where its body is, and its parameters with defaults."""

    name: str  # q7x2.module.Class.method
    file: str
    body: frozenset[int]  # lines of its statements, without those of its documentation
    options: tuple[str, ...]


def functions(package: Path = PACKAGE) -> list[Function]:
    """Those of public modules, and what private modules and those of packages export."""
    exported = exported_names(package)
    found = []
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        module = path.relative_to(package).with_suffix("")
        is_public = len(module.parts) == 1 and not module.name.startswith("_")
        allowed = None if is_public else exported
        where = ".".join(part for part in module.parts if part != "__init__")
        tree = ast.parse(path.read_text())
        found += list(_public(tree.body, path, f"q7x2.{where}".rstrip("."), allowed))
    return found


def exported_names(package: Path = PACKAGE) -> set[str]:
    """All strings of the packages' tables of names, and of ``__all__`` of public modules."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if names & {"__all__", "_NAMES", "_COMPILED"}:
                found |= {
                    constant.value
                    for constant in ast.walk(node)
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
                }
    return {name for name in found if not name.startswith("_")}


def _public(
    nodes: list[ast.stmt], path: Path, where: str, allowed: set[str] | None
) -> Iterator[Function]:
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if allowed is not None and node.name not in allowed:
            continue
        if isinstance(node, ast.ClassDef):
            yield from _of_class(node, path, f"{where}.{node.name}")
        elif not node.name.startswith("_"):
            yield _function(node, path, f"{where}.{node.name}")


def _of_class(node: ast.ClassDef, path: Path, name: str) -> Iterator[Function]:
    if node.name.startswith("_"):
        return
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = tuple(
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign)
            and isinstance(part.target, ast.Name)
            and part.value is not None
        )
        yield Function(name, _relative(path), frozenset(), fields)
    for part in node.body:
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not part.name.startswith("_") or part.name == "__init__":
            yield _function(part, path, f"{name}.{part.name}")


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, path: Path, name: str) -> Function:
    body = [part for part in node.body if not _is_text(part)]
    lines = {line for part in body for line in range(part.lineno, (part.end_lineno or 0) + 1)}
    if path.suffix == ".pyi" or all(isinstance(part, ast.Pass | ast.Raise) for part in body):
        lines = set()  # nothing to enter
    positional = [*node.args.posonlyargs, *node.args.args]
    with_default = positional[len(positional) - len(node.args.defaults) :]
    optional = [
        argument.arg
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if default is not None
    ]
    options = tuple([argument.arg for argument in with_default] + optional)
    return Function(name, _relative(path), frozenset(lines), options)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def variables(sources: Mapping[str, str]) -> set[str]:
    """Environment variables that sources name in quotes."""
    found = set()
    for text in sources.values():
        found |= {
            name for quoted in re.findall(r'"([^"\n]*)"', text) for name in VARIABLE.findall(quoted)
        }
    return found


def arguments(sources: Mapping[str, str]) -> set[str]:
    """Options of commands: what is given to ``add_argument`` and starts with two dashes."""
    return {
        argument.value
        for text in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument")
        for argument in node.args
        if isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and argument.value.startswith("--")
    }
