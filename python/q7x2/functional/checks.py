"""What the operators refuse, while tensors are real or only shapes: typed errors, at once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d
from torch.distributed import ProcessGroup, ReduceOp

from q7x2._core.groups import backend_of

_OPERATIONS = {"sum": ReduceOp(ReduceOp.SUM), "avg": ReduceOp(ReduceOp.AVG)}
NO_CODEC = "none"


@functools.cache
def codec_of(name: str) -> Any:
    """The codec, or None for ``"none"``. Raises ValueError if there is none of that name."""
    from q7x2._core.extension import load

    return None if name == NO_CODEC else load().Codec(name)


def group_of(name: str) -> ProcessGroup:
    """The process group of that name. Raises ValueError if this process has none."""
    resolve: Any = _distributed_c10d._resolve_process_group  # takes a NewType of str from 2.13 on
    try:
        found: ProcessGroup = resolve(name)
    except RuntimeError as error:
        raise ValueError(f"group: this process has no group named {name!r}") from error
    return found


def operation(op: str) -> ReduceOp:
    """Torch's constant. Raises ValueError if it is neither a sum nor an average."""
    if op not in _OPERATIONS:
        raise ValueError(f"op: expected one of {', '.join(_OPERATIONS)}, got {op!r}")
    return _OPERATIONS[op]


def checked_size(function: str, tensor: Tensor, codecs: tuple[str, str], group: str) -> int:
    """The number of ranks, if the tensor, both codecs and the group are right.

    Raises:
        TypeError: The tensor is not of floats, or not dense.
        ValueError: There is no such codec or group, or the group has no q7x2 backend.
    """
    for codec in codecs:
        codec_of(codec)
    if not tensor.dtype.is_floating_point or tensor.layout != torch.strided:
        raise TypeError(
            f"{function}: expected a dense tensor of floats, got {tensor.dtype} and {tensor.layout}"
        )
    found = group_of(group)
    backend_of(found, function)
    return found.size()


def rows_per_rank(function: str, tensor: Tensor, size: int) -> Any:
    """Rows of each rank's part, maybe symbolic. Raises ValueError if they do not come out even."""
    if tensor.dim() == 0 or tensor.shape[0] % size != 0:
        raise ValueError(
            f"{function}: expected a first dimension that {size} ranks can share evenly, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor.shape[0] // size


def check_gather_codec(name: str) -> None:
    """Raise ValueError if the codec only adds: no rank can send its tensor alone."""
    codec = codec_of(name)
    if codec is not None and not codec.has_messages:
        raise ValueError(
            f"all_gather: {name!r} has no messages of its own, it only adds; take another codec, "
            "also as backward_codec of a reduce_scatter"
        )


def exchange_codec(name: str) -> Any:
    """As :func:`codec_of`, for an exchange. Raises ValueError if messages vary in length."""
    codec = codec_of(name)
    if codec is not None and not (codec.has_messages and codec.fixed_size):
        raise ValueError(
            f"all_to_all: the length of a message of {name!r} is not known in advance; "
            "take a codec that sends all elements, such as int8"
        )
    return codec
