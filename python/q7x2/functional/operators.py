"""The operators ``torch.ops.q7x2``: each starts a collective and returns its result to come.

``torch.ops._c10d_functional.wait_tensor`` waits for it, as for torch's own functional collectives,
so a compiler sees the start and the wait apart and can put other work between them. An operator
reads its input before it returns, or sends a copy: a compiler may write to the input's memory
before the wait. A collective that nobody uses is dropped on all ranks, since they run one graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d

from q7x2.collectives.coded import all_gather_into_tensor as _all_gather_into_tensor
from q7x2.collectives.coded import all_reduce as _all_reduce
from q7x2.collectives.coded import reduce_scatter_tensor as _reduce_scatter_tensor
from q7x2.functional import checks
from q7x2.functional.exchange import start_exchange


def register_work(result: Tensor, work: Any) -> None:
    """Let ``wait_tensor`` of ``result`` wait for ``work``."""
    _distributed_c10d._register_work(result, work)


def wait(result: Tensor) -> Tensor:
    """The result of an operator when it is there."""
    waited: Tensor = torch.ops._c10d_functional.wait_tensor(result)
    return waited


@torch.library.custom_op("q7x2::all_reduce", mutates_args=())
def all_reduce(tensor: Tensor, op: str, codec: str, backward_codec: str, group: str) -> Tensor:
    checks.checked_size("all_reduce", tensor, (codec, backward_codec), group)
    result = tensor.clone(memory_format=torch.contiguous_format)
    work = _all_reduce(
        result, checks.operation(op), checks.group_of(group), async_op=True, codec=codec
    )
    register_work(result, work)
    return result


@all_reduce.register_fake
def _(tensor: Tensor, op: str, codec: str, backward_codec: str, group: str) -> Tensor:
    checks.checked_size("all_reduce", tensor, (codec, backward_codec), group)
    checks.operation(op)
    return tensor.new_empty(tensor.shape)


@torch.library.custom_op("q7x2::all_gather", mutates_args=())
def all_gather(tensor: Tensor, codec: str, backward_codec: str, group: str) -> Tensor:
    size = checks.checked_size("all_gather", tensor, (codec, backward_codec), group)
    checks.check_gather_codec(codec)
    result = tensor.new_empty(_gathered(tensor, size))
    sent = tensor.clone(memory_format=torch.contiguous_format)
    work = _all_gather_into_tensor(result, sent, checks.group_of(group), async_op=True, codec=codec)
    register_work(result, work)
    return result


@all_gather.register_fake
def _(tensor: Tensor, codec: str, backward_codec: str, group: str) -> Tensor:
    size = checks.checked_size("all_gather", tensor, (codec, backward_codec), group)
    checks.check_gather_codec(codec)
    return tensor.new_empty(_gathered(tensor, size))


def _gathered(tensor: Tensor, size: int) -> list[Any]:
    if tensor.dim() == 0:
        raise ValueError("all_gather: expected a tensor of at least one dimension, got a scalar")
    return [tensor.shape[0] * size, *tensor.shape[1:]]


@torch.library.custom_op("q7x2::reduce_scatter", mutates_args=())
def reduce_scatter(tensor: Tensor, op: str, codec: str, backward_codec: str, group: str) -> Tensor:
    size = checks.checked_size("reduce_scatter", tensor, (codec, backward_codec), group)
    checks.check_gather_codec(backward_codec)
    rows = checks.rows_per_rank("reduce_scatter", tensor, size)
    result = tensor.new_empty([rows, *tensor.shape[1:]])
    sent = tensor.clone(memory_format=torch.contiguous_format)
    work = _reduce_scatter_tensor(
        result, sent, checks.operation(op), checks.group_of(group), async_op=True, codec=codec
    )
    register_work(result, work)
    return result


@reduce_scatter.register_fake
def _(tensor: Tensor, op: str, codec: str, backward_codec: str, group: str) -> Tensor:
    size = checks.checked_size("reduce_scatter", tensor, (codec, backward_codec), group)
    checks.check_gather_codec(backward_codec)
    rows = checks.rows_per_rank("reduce_scatter", tensor, size)
    checks.operation(op)
    return tensor.new_empty([rows, *tensor.shape[1:]])


@torch.library.custom_op("q7x2::all_to_all", mutates_args=())
def all_to_all(tensor: Tensor, codec: str, backward_codec: str, group: str) -> Tensor:
    _check_exchange(tensor, codec, backward_codec, group)
    result, work = start_exchange(
        tensor.contiguous(), checks.exchange_codec(codec), checks.group_of(group)
    )
    register_work(result, work)
    return result


@all_to_all.register_fake
def _(tensor: Tensor, codec: str, backward_codec: str, group: str) -> Tensor:
    _check_exchange(tensor, codec, backward_codec, group)
    return tensor.new_empty(tensor.shape)


def _check_exchange(tensor: Tensor, codec: str, backward_codec: str, group: str) -> None:
    size = checks.checked_size("all_to_all", tensor, (codec, backward_codec), group)
    checks.rows_per_rank("all_to_all", tensor, size)
    for name in (codec, backward_codec):
        if checks.exchange_codec(name) is not None and tensor.device.type != "cpu":
            raise TypeError(f"all_to_all: codecs of tensors on the CPU only, got {tensor.device}")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.op = inputs[1] if len(inputs) == 5 else "sum"
    ctx.codec, ctx.backward_codec, ctx.group = inputs[-3:]


def _all_reduce_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    own = wait(all_reduce(grad, ctx.op, ctx.backward_codec, ctx.codec, ctx.group))
    return own, None, None, None, None


def _all_gather_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    own = wait(reduce_scatter(grad, "sum", ctx.backward_codec, ctx.codec, ctx.group))
    return own, None, None, None


def _reduce_scatter_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    own = wait(all_gather(grad, ctx.backward_codec, ctx.codec, ctx.group))
    if ctx.op == "avg":
        own = own / checks.group_of(ctx.group).size()
    return own, None, None, None, None


def _all_to_all_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    own = wait(all_to_all(grad, ctx.backward_codec, ctx.codec, ctx.group))
    return own, None, None, None


all_reduce.register_autograd(_all_reduce_back, setup_context=_keep)
all_gather.register_autograd(_all_gather_back, setup_context=_keep)
reduce_scatter.register_autograd(_reduce_scatter_back, setup_context=_keep)
all_to_all.register_autograd(_all_to_all_back, setup_context=_keep)
