"""DiLoCo of a model that FSDP2 shards.

Each rank synchronises its shards with the ranks of other replicas that hold the same ones. The
ranks of one replica decide together, so that a replica never holds shards of different outer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2._core.groups import ranks_of

_FINE, _NOT_FINITE, _FAILED = range(3)


def is_sharded(parameter: Tensor) -> bool:
    """Whether it is a DTensor, which FSDP2 makes of a parameter."""
    return hasattr(parameter.data, "device_mesh")


def local(parameter: Tensor) -> Tensor:
    """What of a parameter, or of its optimizer's state, this rank holds; no copy."""
    to_local: Callable[[], Tensor] | None = getattr(parameter, "to_local", None)
    return parameter if to_local is None else to_local()


class Replica:
    """The ranks that hold one copy of the model together: this rank alone if it is not sharded.

    Args:
        parameters: Those of the model, by name.

    Raises:
        ValueError: Parameters are sharded over different meshes, or over parts of sums.
    """

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        self._groups: list[ProcessGroup] = []
        self._device = torch.device("cpu")
        mesh: Any = None
        for name, parameter in parameters:
            self._device = parameter.device
            if not is_sharded(parameter):
                continue
            tensor: Any = parameter.data
            if any(placement.is_partial() for placement in tensor.placements):
                raise ValueError(f"parameter {name!r}: expected shards, got parts of a sum")
            if mesh is not None and tensor.device_mesh != mesh:
                raise ValueError(
                    f"parameter {name!r}: expected all parameters on one mesh, got "
                    f"{tensor.device_mesh} beside {mesh}"
                )
            mesh = tensor.device_mesh
        if mesh is not None:
            self._groups = [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]

    def check_apart(self, group: ProcessGroup) -> None:
        """Raise ValueError if two ranks of ``group`` hold shards of the same replica."""
        for mine in self._groups:
            if shared := set(ranks_of(mine)).intersection(ranks_of(group)) - {dist.get_rank()}:
                raise ValueError(
                    "group must have the ranks that hold the same shards, one of each replica; "
                    f"rank {min(shared)} holds other shards of the replica of rank "
                    f"{dist.get_rank()}"
                )

    def together(self, call: Callable[[], Sequence[float]]) -> list[float]:
        """Make the same call on all ranks of the replica; it fails on all of them, or on none.

        Args:
            call: Changes nothing. Returns figures, as many on all ranks.

        Returns:
            The largest of each figure.

        Raises:
            FloatingPointError: ``call`` raised it, here or on another rank.
            RuntimeError: The same, for another error.
        """
        if not self._groups:
            return list(call())
        error: Exception | None = None
        figures: Sequence[float] = ()
        try:
            figures = call()
        except Exception as raised:
            error = raised
        is_finite = not isinstance(error, FloatingPointError)
        kind = _FINE if error is None else _FAILED if is_finite else _NOT_FINITE
        worst = self._largest([float(kind)])[0]
        if error is not None:
            raise error
        if worst == _NOT_FINITE:
            raise FloatingPointError(
                "an outer gradient has Inf or NaN in another shard of this replica; the outer "
                "step is not taken"
            )
        if worst == _FAILED:
            raise RuntimeError(
                "another rank of this replica could not take the outer step; it is not taken here "
                "either"
            )
        return self._largest(figures)

    def _largest(self, figures: Sequence[float]) -> list[float]:
        values = torch.tensor(figures, dtype=torch.float64, device=self._device)
        for group in self._groups:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=group)
        largest: list[float] = values.tolist()
        return largest
