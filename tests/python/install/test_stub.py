"""The stub of the compiled module has the arguments that its functions have.

`./dev lint` runs mypy's stubtest, which cannot see the arguments of pybind11's functions; their
docstrings begin with them. Python's classes of options have the defaults of the C++ structs. And
type checkers see the public names that the package has.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import q7x2
from q7x2._core.extension import load

STUB = pathlib.Path(q7x2.__file__).with_name("_C.pyi")


def stub_functions() -> Iterator[tuple[str, list[str]]]:
    """The dotted names of functions and methods, and the names of their arguments."""
    for node in ast.parse(STUB.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef) and not each.decorator_list:
                arguments = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
                yield prefix + each.name, [a.arg for a in arguments if a.arg != "self"]


def compiled_arguments(function: Any) -> list[str] | None:
    """From "name(self: T, a: int, *, b: dict[str, int] = {}) -> None"; None: it says nothing."""
    signature, _, _ = (function.__doc__ or "").strip().partition("\n")
    if "(" not in signature or signature.endswith("Overloaded function."):
        return None
    parts, depth = [""], 0
    for c in signature[signature.index("(") + 1 :]:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            break
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    names = [part.split(":")[0].split("=")[0].strip() for part in parts]
    return [name for name in names if name and name != "*" and name != "self"]


FUNCTIONS = dict(stub_functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stub_has_the_arguments_of_the_module(name: str) -> None:
    compiled: Any = load()
    for part in name.split("."):
        compiled = getattr(compiled, part)
    arguments = compiled_arguments(compiled)
    if arguments is None or any(a.startswith("arg") for a in arguments):
        pytest.skip("the module does not name its arguments")
    assert FUNCTIONS[name] == arguments


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse(pathlib.Path(q7x2.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen: dict[bool, list[str]] = {True: ["__version__"], False: []}
    for node in imports:
        names = [a.asname for a in node.names if a.asname is not None and a.asname == a.name]
        seen[node.module != "q7x2"] += names
    assert sorted(seen[True]) == q7x2.__all__
    assert all(inspect.ismodule(getattr(q7x2, name)) for name in seen[False] if name != "torchft")


# What Python's classes choose otherwise than the C++ structs.
OTHERWISE = {"rank"}


def shared_defaults(hook: Any, fields: Any) -> set[str]:
    """The options that the hook has in common with C++, whose defaults must be equal."""
    shared = {field.name for field in fields if hasattr(hook, field.name)} - OTHERWISE
    for field in fields:
        if field.name in shared:
            mine = getattr(hook, field.name)
            empty = (None, ()) if not field.default else ()
            assert mine == field.default or mine in empty, field.name
    return shared


def test_hooks_have_the_defaults_of_all_compressing_hooks() -> None:
    shared = shared_defaults(q7x2.Quantize(), load().compressing_fields())
    assert shared == {"start_iter", "burst_every", "burst_steps", "use_error_feedback"}


def test_a_compressing_hook_refuses_what_does_not_exist() -> None:
    hook = load().compressing_hook
    with pytest.raises(ValueError, match="one of gradient, accumulated, averaged, lion, global"):
        hook("codec", {}, {"signal": "gradients"}, [])
    with pytest.raises(ValueError, match="a compressing hook has no option 'burst': expected one"):
        hook("codec", {}, {"burst": 2}, [])
    with pytest.raises(ValueError, match="clip_norm must not be negative, got -1"):
        hook("codec", {}, {"clip_norm": -1}, [])


@pytest.mark.parametrize(
    ("compressor", "hook"),
    [
        ("codec", q7x2.Quantize()),
        ("low_rank", q7x2.PowerSGD()),
        ("flat_low_rank", q7x2.PowerSGD(batched=True)),
    ],
)
def test_hooks_have_the_defaults_of_their_compressors(compressor: str, hook: Any) -> None:
    (kind,) = (kind for kind in load().compressor_kinds() if kind.name == compressor)
    assert len(shared_defaults(hook, kind.fields)) >= 2
