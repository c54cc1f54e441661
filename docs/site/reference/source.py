"""What only the source of a class tells: the stub of a compiled one, and texts of attributes."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

COMPILED = "q7x2._C"
_CHECKS = ("backend_of", "duration_of", "resolve_group")  # and all that begin with `check_`


@functools.cache
def _stub() -> dict[str, ast.ClassDef]:
    home = importlib.util.find_spec("q7x2")
    assert home is not None
    assert home.origin is not None
    tree = ast.parse(Path(home.origin).with_name("_C.pyi").read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def as_python(value: Any) -> Any:
    """``value``; for a compiled class, a class of Python with the signatures of its stub."""
    if not inspect.isclass(value) or value.__module__ != COMPILED:
        return value
    node = ast.parse("class _: ...").body[0]
    assert isinstance(node, ast.ClassDef)
    node.name, node.body = value.__name__, _stub()[value.__name__].body
    tree = ast.fix_missing_locations(ast.Module([node], type_ignores=[]))
    space: dict[str, Any] = {"__name__": COMPILED}
    exec(compile(tree, "_C.pyi", "exec"), space)  # with postponed annotations, as this file
    made = space[value.__name__]
    made.__doc__ = value.__doc__ or made.__doc__
    return made


def raises(function: Any) -> bool:
    """Whether the body of a function of Python raises an error, or calls a check of options."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return False  # compiled, or made by `dataclass`
    return any(map(_is_raise, ast.walk(ast.parse(source))))


def _is_raise(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return node.exc is not None and "NotImplementedError" not in ast.unparse(node.exc)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id.startswith("check_") or node.func.id in _CHECKS
    return False


def attribute_texts(value: type) -> dict[str, str]:
    """The docstrings that follow attributes in the body of a class."""
    if value.__module__ == COMPILED:
        body = _stub()[value.__name__].body
    else:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
        assert isinstance(node, ast.ClassDef)
        body = node.body
    return {
        each.target.id: inspect.cleandoc(after.value.value)
        for each, after in itertools.pairwise(body)
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
