"""Torch's all-reduce, reduce-scatter and all-gather with a codec: fewer bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, ReduceOp, Work

    from q7x2._C import CodedOptions

_NONFINITE = ("propagate", "error")


def _tensors(name: str, given: Tensor | Sequence[Tensor]) -> list[Tensor]:
    import torch

    if isinstance(given, torch.Tensor):
        return [given]
    tensors = list(given) if isinstance(given, Iterable) else [given]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor or a list of them, got {tensor!r}")
    return tensors


def _options(
    codec: str,
    *,
    op: ReduceOp | None,
    async_op: bool,
    residual: Tensor | Sequence[Tensor] | None,
    seed: int,
    step: int | None,
    nonfinite: str,
    max_error: float,
    edges: str,
) -> CodedOptions:
    import torch.distributed as dist

    from q7x2._core.extension import load

    if nonfinite not in _NONFINITE:
        raise ValueError(f"nonfinite: expected one of {', '.join(_NONFINITE)}, got {nonfinite!r}")
    for name, value in (("seed", seed), ("step", step)):
        if value is not None and not 0 <= value < 2**64:
            raise ValueError(f"{name}: expected 0 <= {name} < 2**64, got {value}")
    if not max_error >= 0:
        raise ValueError(f"max_error: expected a number of at least 0, got {max_error}")
    options: CodedOptions = load().CodedOptions(
        codec,
        max_error=max_error,
        op=dist.ReduceOp.SUM if op is None else op,
        residuals=[] if residual is None else _tensors("residual", residual),
        seed=seed,
        step=step,
        refuse_nonfinite=nonfinite == "error",
        edges=edges,
        async_op=async_op,
    )
    return options


def _refuse_codecs(**arguments: Any) -> None:
    """Raise TypeError if a codec was given by position."""
    for name, value in arguments.items():
        if isinstance(value, str):
            raise TypeError(f"{name}: got {value!r}; give a codec by keyword, codec={value!r}")


def _finish(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


def all_reduce(
    tensor: Tensor | Sequence[Tensor],
    op: ReduceOp | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    codec: str = "none",
    residual: Tensor | Sequence[Tensor] | None = None,
    seed: int = 0,
    step: int | None = None,
    nonfinite: str = "propagate",
    max_error: float = 0.01,
    edges: str = "auto",
) -> Work | None:
    """Sum a tensor over all ranks with compressed messages, in place.

    Every rank encodes its contributions to the owners of the parts once. An owner adds in float32,
    in rank order, and encodes the sum once. All ranks decode the same bytes, so their results are
    bit-identical. ``edges`` says between which ranks messages are compressed.

    >>> q7x2.all_reduce(gradient, dist.ReduceOp.AVG, codec="int8", residual=errors)

    Args:
        tensor: A dense tensor of floats, of any shape and length, or a list of such tensors, each
            of which is reduced separately.
        op: ``ReduceOp.SUM`` (the default) or ``ReduceOp.AVG``.
        group: The default group if None.
        async_op: Return a work at once.
        codec: The codec's name: ``"fp16"``, ``"int4:g=128:sr"``, ``"topk:0.01+int8"``;
            docs/codecs.md has all. ``"none"`` sends the tensor as it is. ``"blocks"`` sends no
            blocks of zeros, and loses nothing: for tensors that are mostly zero, of any dtype that
            can be summed; see docs/omnireduce.md. ``"auto"`` uses the codec that the planner
            expects to be fastest within ``max_error``, or none. Equal on all ranks.
        residual: Error feedback: a contiguous float32 tensor with as many elements as ``tensor``,
            or a list for a list of tensors. It is added to this rank's contribution. Afterwards it
            holds what was lost: the results and the residuals of all ranks add up to the sum. Do
            not touch it before the work is complete.
        seed: The seed of the codec's random numbers, if it has any. Equal on all ranks.
        step: The place in the sequence of random numbers, equal on all ranks. None: the number of
            compressed calls of the group so far.
        nonfinite: ``"propagate"``: an infinity or NaN makes its element, or the elements that share
            its scale, NaN in every rank's result. ``"error"``: the call raises on every rank.
        max_error: For ``"auto"``: the largest relative error (L2) that one rounding of normally
            distributed numbers may have.
        edges: Between which ranks messages are compressed. ``"all"``: between all. ``"host"``: only
            between hosts; ``"rack"``: only between racks; ranks of one host, or rack, add exactly.
            ``"slow"``: where the planner expects that it makes the call fastest, if anywhere.
            ``"auto"``: between racks, between hosts or between all: the fewest of these with which
            the call takes at most 5 % longer than with the others. Equal on all ranks.

    Returns:
        The work if ``async_op``, else None.

    Raises:
        RuntimeError: There is no codec of that name (the message lists all), a tensor is not of
            floats, a residual has the wrong dtype or length, ranks disagree about the call, or
            ``"blocks"`` has another argument than ``op``, ``group`` and ``async_op``.
        TypeError: A codec was given by position.
        ValueError: The group has no q7x2 backend, there are no such ``edges``, or another argument
            is out of range.
    """
    from q7x2._core.groups import backend_of

    _refuse_codecs(op=op, group=group)
    options = _options(
        codec,
        op=op,
        async_op=async_op,
        residual=residual,
        seed=seed,
        step=step,
        nonfinite=nonfinite,
        max_error=max_error,
        edges=edges,
    )
    backend = backend_of(group, "q7x2.all_reduce")
    work = backend.coded_all_reduce(_tensors("tensor", tensor), options)
    return _finish(work, async_op)


def reduce_scatter_tensor(
    output: Tensor | Sequence[Tensor],
    input: Tensor | Sequence[Tensor],
    op: ReduceOp | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    codec: str = "none",
    residual: Tensor | Sequence[Tensor] | None = None,
    seed: int = 0,
    step: int | None = None,
    nonfinite: str = "propagate",
    max_error: float = 0.01,
    edges: str = "auto",
) -> Work | None:
    """Give each rank its part of the sum of all ranks' inputs, with compressed messages.

    Contributions are encoded once; the owner adds in float32, in rank order, and keeps the sum
    exactly. :func:`all_reduce` says more about the arguments.

    Args:
        output: A tensor with as many elements as ``input`` divided by the world size, or a list.
        input: A tensor with world size times the elements of ``output``, part r for rank r, or a
            list.
        codec: The codec's name, ``"none"``, ``"blocks"`` or ``"auto"``. Equal on all ranks.
        op: ``ReduceOp.SUM`` (the default) or ``ReduceOp.AVG``.
        group: The default group if None.
        async_op: Return a work at once.
        residual: Error feedback, a float32 tensor with as many elements as ``input``, or a list.
        seed: The seed of the codec's random numbers. Equal on all ranks.
        step: The place in the sequence of random numbers. Equal on all ranks.
        nonfinite: ``"propagate"`` or ``"error"``.
        max_error: The largest relative error, for ``"auto"``.
        edges: Between which ranks messages are compressed. Equal on all ranks.

    Returns:
        The work if ``async_op``, else None.

    Raises:
        RuntimeError: As :func:`all_reduce`, or lengths do not fit.
        ValueError: As :func:`all_reduce`.
    """
    from q7x2._core.groups import backend_of

    _refuse_codecs(op=op, group=group)
    options = _options(
        codec,
        op=op,
        async_op=async_op,
        residual=residual,
        seed=seed,
        step=step,
        nonfinite=nonfinite,
        max_error=max_error,
        edges=edges,
    )
    backend = backend_of(group, "q7x2.reduce_scatter_tensor")
    work = backend.coded_reduce_scatter(
        _tensors("output", output), _tensors("input", input), options
    )
    return _finish(work, async_op)


def all_gather_into_tensor(
    output_tensor: Tensor | Sequence[Tensor],
    input_tensor: Tensor | Sequence[Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    codec: str = "none",
    residual: Tensor | Sequence[Tensor] | None = None,
    seed: int = 0,
    step: int | None = None,
    nonfinite: str = "propagate",
    max_error: float = 0.01,
    edges: str = "auto",
) -> Work | None:
    """Collect all ranks' inputs on all ranks, with compressed messages.

    Each rank also decodes its own part from its own message, so all results are bit-identical.
    :func:`all_reduce` says more about the arguments.

    Args:
        output_tensor: A tensor with world size times the elements of ``input_tensor``; part r comes
            from rank r. Or a list of such tensors.
        input_tensor: A tensor of the same length on all ranks, or a list of such tensors.
        codec: The codec's name, ``"none"`` or ``"auto"``. Equal on all ranks.
        group: The default group if None.
        async_op: Return a work at once.
        residual: Error feedback, a float32 tensor with as many elements as
            ``input_tensor``, or a list.
        seed: The seed of the codec's random numbers. Equal on all ranks.
        step: The place in the sequence of random numbers. Equal on all ranks.
        nonfinite: ``"propagate"`` or ``"error"``.
        max_error: The largest relative error, for ``"auto"``.
        edges: Between which ranks messages are compressed. Equal on all ranks.

    Returns:
        The work if ``async_op``, else None.

    Raises:
        RuntimeError: As :func:`all_reduce`, or lengths do not fit.
        ValueError: As :func:`all_reduce`.
    """
    from q7x2._core.groups import backend_of

    _refuse_codecs(group=group)
    options = _options(
        codec,
        op=None,
        async_op=async_op,
        residual=residual,
        seed=seed,
        step=step,
        nonfinite=nonfinite,
        max_error=max_error,
        edges=edges,
    )
    backend = backend_of(group, "q7x2.all_gather_into_tensor")
    work = backend.coded_all_gather(
        _tensors("output_tensor", output_tensor), _tensors("input_tensor", input_tensor), options
    )
    return _finish(work, async_op)
