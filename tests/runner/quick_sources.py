"""The text of the tests of the quick level: all of tests/python without tests marked nightly."""

from __future__ import annotations

import ast
from pathlib import Path


def quick_tests(folder: Path) -> str:
    """What tests and the modules that they import say, without nightly tests and this runner's."""
    return "\n".join(
        without_nightly(path.read_text())
        for path in sorted(folder.rglob("*.py"))
        if path.parent.name != "runner"
    )


def without_nightly(source: str) -> str:
    """The source without the tests that are decorated with ``pytest.mark.nightly``.

    The mark may have a name of the module, as in ``AGAIN = pytest.mark.nightly("...")``.
    """
    lines = source.splitlines()
    tree = ast.parse(source)
    marks = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_mark(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if any(_is_mark(decorator, marks) for decorator in node.decorator_list):
            first = min(decorator.lineno for decorator in node.decorator_list)
            last = node.end_lineno or first
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def _is_mark(node: ast.expr, names: set[str]) -> bool:
    text = ast.unparse(node)
    return text in names or text.startswith("pytest.mark.nightly")
