"""A state of training as bytes, and back: what another process sends runs no code here.

A state is a tree of dictionaries, lists and tuples with tensors, numbers, texts, bools and None, as
optimizers have it. The bytes are a length (8 bytes, little-endian), a text of JSON that describes
the tree, and the elements of the tensors one after the other, each tensor from a multiple of 16
bytes on.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from q7x2._core.json_values import MalformedMessageError

_ALIGNED = 16
_LENGTH = 8
_DEEPEST = 64
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}


def encode(state: Any) -> Tensor:
    """``state`` as a vector of uint8, on the CPU.

    Raises:
        TypeError: A part of it is of another type, or a tensor of another dtype.
    """
    tensors: list[Tensor] = []
    text = json.dumps(_described(state, tensors)).encode()
    parts = [len(text).to_bytes(_LENGTH, "little"), text]
    length = _LENGTH + len(text)
    for tensor in tensors:
        gap = -length % _ALIGNED
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        parts += [bytes(gap), flat.view(torch.uint8).numpy().tobytes()]
        length += gap + flat.numel() * flat.element_size()
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


def decode(data: Tensor) -> Any:
    """The state of which :func:`encode` made ``data``.

    Raises:
        MalformedMessageError: It made no such bytes.
    """
    try:
        length = int.from_bytes(data[:_LENGTH].numpy().tobytes(), "little")
        reader = _Reader(data, _LENGTH + length)
        tree = json.loads(data[_LENGTH : _LENGTH + length].numpy().tobytes())
        state = reader.made(tree, 0)
    except MalformedMessageError:
        raise
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError, OverflowError) as error:
        raise MalformedMessageError(f"expected a state of training: {error!r}") from None
    if reader.at != data.numel():
        raise MalformedMessageError(f"a state has {data.numel()} bytes, expected {reader.at}")
    return state


def _described(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise TypeError(f"a state has a tensor of {dtype}, expected {', '.join(_DTYPES)}")
        tensors.append(value)
        return {"tensor": dtype, "shape": list(value.shape)}
    if isinstance(value, dict):
        items = [[_key(key), _described(each, tensors)] for key, each in value.items()]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(each, tensors) for each in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state has a {type(value).__name__}, expected tensors and plain values")


def _key(key: Any) -> str | int:
    if isinstance(key, str) or type(key) is int:
        return key
    raise TypeError(f"a state has the key {key!r}, expected a text or a whole number")


class _Reader:
    """Makes values of what the text describes; the elements begin behind byte ``at``."""

    def __init__(self, data: Tensor, at: int) -> None:
        self._data, self.at = data, at

    def made(self, tree: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise MalformedMessageError("a state is nested too deeply")
        if not isinstance(tree, dict):
            if isinstance(tree, list):
                raise MalformedMessageError("a state has a list without its kind")
            return tree
        if "tensor" in tree:
            return self._tensor(_DTYPES[tree["tensor"]], tree["shape"])
        ((kind, items),) = tree.items()
        if kind == "dict":
            return {_key(key): self.made(each, depth + 1) for key, each in items}
        values = [self.made(each, depth + 1) for each in items]
        return {"list": list, "tuple": tuple}[kind](values)

    def _tensor(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        if any(type(size) is not int or size < 0 for size in shape):
            raise MalformedMessageError(f"a state has a tensor of shape {shape}")
        begin = self.at + -self.at % _ALIGNED
        self.at = begin + math.prod(shape) * dtype.itemsize
        if self.at > self._data.numel():
            raise MalformedMessageError("a state ends in the middle of a tensor")
        # A copy: elements of a vector of bytes need not be where their type wants them.
        part = bytearray(self._data[begin : self.at].numpy().tobytes())
        flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
        return flat.reshape(shape)
