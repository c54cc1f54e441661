"""The functional collectives: an operator, and the wait for its result."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.groups import resolve_group
from q7x2.functional import operators


def _name(group: ProcessGroup | str | None) -> str:
    return group if isinstance(group, str) else str(resolve_group(group).group_name)


def all_reduce(
    tensor: Tensor,
    op: str = "sum",
    group: ProcessGroup | str | None = None,
    *,
    codec: str,
    backward_codec: str | None = None,
) -> Tensor:
    """The sum of all ranks' tensors, with compressed messages; equal bits on all ranks.

    The gradient is the all-reduce of the gradients. Error feedback is not part of the functional
    forms: what rounding loses is lost.

    >>> total = q7x2.functional.all_reduce(partial, codec="int8")

    Args:
        tensor: A dense tensor of floats; it stays as it is.
        op: ``"sum"`` or ``"avg"``.
        group: A process group or its name; None is the default group.
        codec: The codec's name, or ``"none"``. docs/codecs.md has all.
        backward_codec: For the gradient; None: that of ``codec``.

    Raises:
        TypeError: The tensor is not a dense one of floats.
        ValueError: There is no such codec, operation or group, or the group has no q7x2 backend.
    """
    return operators.wait(
        operators.all_reduce(tensor, op, codec, backward_codec or codec, _name(group))
    )


def all_gather(
    tensor: Tensor,
    group: ProcessGroup | str | None = None,
    *,
    codec: str,
    backward_codec: str | None = None,
) -> Tensor:
    """All ranks' tensors, one after the other along the first dimension.

    The gradient is the reduce-scatter of the gradients, a sum.

    Args:
        tensor: It has the same shape on all ranks, and at least one dimension.
        group: A process group or its name; None is the default group.
        codec: The codec's name, or ``"none"``.
        backward_codec: For the gradient; None: that of ``codec``.

    Raises:
        TypeError: As :func:`all_reduce`.
        ValueError: As :func:`all_reduce`, or the tensor has no dimension.
    """
    return operators.wait(
        operators.all_gather(tensor, codec, backward_codec or codec, _name(group))
    )


def reduce_scatter(
    tensor: Tensor,
    op: str = "sum",
    group: ProcessGroup | str | None = None,
    *,
    codec: str,
    backward_codec: str | None = None,
) -> Tensor:
    """This rank's part, along the first dimension, of the sum of all ranks' tensors.

    The gradient is the all-gather of the gradients.

    Args:
        tensor: Its first dimension is a multiple of the number of ranks.
        op: ``"sum"`` or ``"avg"``.
        group: A process group or its name; None is the default group.
        codec: The codec's name, or ``"none"``.
        backward_codec: For the gradient; None: that of ``codec``.

    Raises:
        TypeError: As :func:`all_reduce`.
        ValueError: As :func:`all_reduce`, or the first dimension does not fit.
    """
    return operators.wait(
        operators.reduce_scatter(tensor, op, codec, backward_codec or codec, _name(group))
    )


def all_to_all(
    tensor: Tensor,
    group: ProcessGroup | str | None = None,
    *,
    codec: str,
    backward_codec: str | None = None,
) -> Tensor:
    """Part r, along the first dimension, goes to rank r; the result has a part of each rank.

    The gradient is the all-to-all of the gradients. This rank's own part passes the codec, too.

    Args:
        tensor: On the CPU; its first dimension is a multiple of the number of ranks.
        group: A process group or its name; None is the default group.
        codec: The name of a codec that sends all elements, or ``"none"``.
        backward_codec: For the gradient; None: that of ``codec``.

    Raises:
        TypeError: As :func:`all_reduce`, or the tensor is on another device.
        ValueError: As :func:`all_reduce`, the first dimension does not fit, or the length of the
            codec's messages depends on the values.
    """
    return operators.wait(
        operators.all_to_all(tensor, codec, backward_codec or codec, _name(group))
    )
