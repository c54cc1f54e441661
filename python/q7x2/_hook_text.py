"""A hook written as text: ``"int8"``, ``"PowerSGD(rank=4)"``, ``'Sharded("int4:g=128")'``.

The text is parsed, never evaluated: it names a codec, or calls one of the classes below with
literals or with other hooks. So a variable of the environment cannot run code.
"""

from __future__ import annotations

import ast
import difflib
from typing import Any

import torch

from q7x2.fsdp.options import Sharded
from q7x2.hooks.options import (
    EF21,
    Allreduce,
    BlockSparse,
    Compose,
    HookOptions,
    OneBit,
    PowerSGD,
    Quantize,
    SignSGD,
    TopK,
)

HOOKS: dict[str, Any] = {
    hook.__name__: hook
    for hook in (
        *(Allreduce, BlockSparse, Compose, EF21, OneBit, PowerSGD, Quantize, SignSGD, TopK),
        Sharded,
    )
}

_EXPECTED = "expected a hook such as 'PowerSGD(rank=4)'"


def parse_hook(text: str) -> HookOptions | Sharded | str:
    """The hook that ``text`` describes; or ``text`` itself, if it is the name of a codec.

    Raises:
        ValueError: It is neither; or the hook refuses its options.
    """
    text = text.strip()
    called = text.removeprefix("q7x2.")
    if called in HOOKS:
        hook: HookOptions | Sharded = _made(called, [], {})
        return hook
    if "(" not in called:
        _check_codec(text)
        return text
    try:
        tree = ast.parse(called, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"expected a hook such as 'PowerSGD(rank=4)', got {text!r}: {error}"
        ) from None
    if not isinstance(tree, ast.Call):
        raise ValueError(f"expected a hook such as 'PowerSGD(rank=4)', got {text!r}")
    parsed: HookOptions | Sharded = _value(tree, text)
    return parsed


def _check_codec(text: str) -> None:
    from q7x2._core.extension import load

    try:
        load().Codec(text)
    except ValueError as error:
        near = difflib.get_close_matches(text, HOOKS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"hooks are {', '.join(sorted(HOOKS))}"
        raise ValueError(f"{text!r} is neither a codec nor a hook ({error}); {hint}") from None


def _value(node: ast.expr, text: str) -> Any:
    """What a part of the text means: a hook, a list of such, or a literal."""
    if isinstance(node, ast.Call):
        if any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"expected named options instead of **, got {text!r}")
        options = {str(keyword.arg): _value(keyword.value, text) for keyword in node.keywords}
        return _made(_name(node.func), [_value(each, text) for each in node.args], options)
    if isinstance(node, (ast.List, ast.Tuple)):
        return tuple(_value(each, text) for each in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key, text): _value(value, text) for key, value in pairs if key is not None}
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
        dtype = getattr(torch, node.attr, None)
        if isinstance(dtype, torch.dtype):
            return dtype
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(
            "expected options that are numbers, strings, True, False, None, dtypes, hooks, or "
            f"lists and dictionaries of these, got {ast.unparse(node)!r} in {text!r}"
        ) from None


def _name(node: ast.expr) -> str:
    return ast.unparse(node).removeprefix("q7x2.")


def _made(name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
    if name not in HOOKS:
        near = difflib.get_close_matches(name, HOOKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(sorted(HOOKS))}"
        raise ValueError(f"there is no hook {name!r}; {hint}")
    try:
        return HOOKS[name](*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
