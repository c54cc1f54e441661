"""Linear layers that :class:`ColwiseOverlap` and :class:`RowwiseOverlap` take over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement

from q7x2._core.agreement import check_agreement
from q7x2._core.exchange import gather
from q7x2._core.overlap_trial import OverlapTrial, may_try
from q7x2.tensor_parallel.choice import (
    DEFAULT,
    Candidate,
    LayerStats,
    Products,
    choose,
    measure,
    message_seconds,
)
from q7x2.tensor_parallel.linear import Column, Row, product


class Layout:
    """What a layer needs to know of its style."""

    def __init__(
        self, mesh: DeviceMesh, sequence: Placement, use_local_output: bool, chunks: int | None
    ) -> None:
        assert isinstance(sequence, Shard)
        self.mesh, self.dim = mesh, sequence.dim
        self.use_local_output, self.given_chunks = use_local_output, chunks
        self.is_ready = False  # the ranks have compared the layer

    def dim_of(self, x: Tensor) -> int:
        """The dimension of the sequence, counted from 0; ValueError if ``x`` has none there."""
        dim = self.dim + x.dim() if self.dim < 0 else self.dim
        if not 0 <= dim < x.dim() - 1:
            raise ValueError(
                f"the sequence is dimension {self.dim}, but the input has shape {tuple(x.shape)}, "
                "whose last dimension holds the features"
            )
        return dim


class OverlappedLinear(nn.Linear):
    """What both layers have in common. A layer becomes one by a change of its class."""

    overlap: LayerStats
    _layout: Layout
    _function: Any  # a Function of autograd

    def forward(self, input: Tensor) -> Tensor:
        layout, group = self._layout, self.overlap.group
        problem: Exception | None = None
        try:
            x, weight, bias = self._operands(input)
            dim = layout.dim_of(x)
            self._check(x, weight, dim)
        except (TypeError, ValueError) as error:
            if layout.is_ready:
                raise
            problem = error
        if not layout.is_ready:
            if problem is not None:
                check_agreement("overlapped layer", self._facts(None, 0), group, problem)
                raise problem
            self._prepare(x, weight, dim)
        with torch.autocast(x.device.type, enabled=False):
            y: Tensor = self._function.apply(x, weight, bias, dim, self.overlap)
        if layout.use_local_output:
            return y
        return DTensor.from_local(y, layout.mesh, [self._output_placement(y, dim)], run_check=False)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, chunks={self.overlap.chunks or None}"

    def _operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """This rank's parts of input, weight and bias, in the dtype of the products."""
        if isinstance(x, DTensor):
            wanted = self._input_placement(x)
            if x.device_mesh != self._layout.mesh or x.placements != (wanted,):
                raise ValueError(
                    f"the input must be a plain tensor, or a DTensor of {wanted} on the mesh of "
                    f"the layer, got {x.placements} on {x.device_mesh}"
                )
            if x.shape[wanted.dim] % self.overlap.group.size():
                raise ValueError(
                    f"dimension {wanted.dim} of the input, {x.shape[wanted.dim]}, cannot be "
                    f"divided equally among {self.overlap.group.size()} ranks"
                )
            x = x.to_local()
        if not isinstance(self.weight, DTensor):
            raise TypeError("the weight is no DTensor any more")
        weight = self.weight.to_local()
        bias = self.bias.to_local() if isinstance(self.bias, DTensor) else self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return x, weight, bias

    def _check(self, x: Tensor, weight: Tensor, dim: int) -> None:
        """Raises ValueError for an input that the layer cannot take."""
        if x.dtype != weight.dtype or x.device != weight.device:
            raise ValueError(
                f"the input is {x.dtype} on {x.device}, the weight {weight.dtype} on "
                f"{weight.device}"
            )
        if x.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"the input must have {weight.shape[1]} features on this rank, got shape "
                f"{tuple(x.shape)}"
            )

    def _prepare(self, x: Tensor, weight: Tensor, dim: int) -> None:
        """Compare the layer on all ranks, and choose ``chunks``; a collective call."""
        overlap, given = self.overlap, self._layout.given_chunks
        group = overlap.group
        rows = self._shard_rows(x, dim)
        features = self._sent_features(x, weight)
        others = x.numel() // max(1, x.shape[dim] * x.shape[-1])
        overlap.message_bytes = rows * others * features * x.element_size()
        check_agreement("overlapped layer", self._facts(x, dim), group)
        is_gather = self._function is Column
        collective = "all_gather" if is_gather else "reduce_scatter"
        message = None
        if given is None and group.size() > 1:
            message = message_seconds(group, collective)
        if message is not None:
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):

                def multiply(parts: int, count: int) -> object:
                    piece = x.narrow(dim, 0, count)
                    return product(torch.stack([piece] * parts), weight)

                times = measure(multiply, rows, group.size() - is_gather)
            everybody = gather(times, Products, group)
            candidates = choose(everybody, message, overlap.message_bytes, is_gather)
            shared = check_agreement(
                "overlapped layer", {}, group, shared=candidates, shared_kind=list[Candidate]
            )
            overlap.candidates = shared
        if given is None:
            overlap.chunks = overlap.candidates[0].chunks if overlap.candidates else DEFAULT
        if may_try(given is not None, x.device, group):
            overlap.trial = OverlapTrial(group, type(self).__name__)
        self._layout.is_ready = True

    def _facts(self, x: Tensor | None, dim: int) -> dict[str, Any]:
        """What must be equal on all ranks."""
        facts = {"style": type(self).__name__, "chunks": self._layout.given_chunks}
        return facts | {
            "features": (self.in_features, self.out_features),
            "shape": None if x is None else tuple(x.shape),
            "dtype": None if x is None else x.dtype,
            "dimension": dim,
        }

    # What the two layers differ in. ``dim`` is the dimension of the sequence.

    def _input_placement(self, x: Tensor) -> Shard:
        raise NotImplementedError

    def _output_placement(self, y: Tensor, dim: int) -> Shard:
        raise NotImplementedError

    def _shard_rows(self, x: Tensor, dim: int) -> int:
        raise NotImplementedError

    def _sent_features(self, x: Tensor, weight: Tensor) -> int:
        raise NotImplementedError


class ColwiseLinear(OverlappedLinear):
    """What :class:`q7x2.tensor_parallel.ColwiseOverlap` makes of a Linear."""

    _function = Column

    def _input_placement(self, x: Tensor) -> Shard:
        return Shard(self._layout.dim_of(x))

    def _output_placement(self, y: Tensor, dim: int) -> Shard:
        return Shard(y.dim() - 1)

    def _shard_rows(self, x: Tensor, dim: int) -> int:
        return x.shape[dim]

    def _sent_features(self, x: Tensor, weight: Tensor) -> int:
        return x.shape[-1]


class RowwiseLinear(OverlappedLinear):
    """What :class:`q7x2.tensor_parallel.RowwiseOverlap` makes of a Linear."""

    _function = Row

    def _check(self, x: Tensor, weight: Tensor, dim: int) -> None:
        super()._check(x, weight, dim)
        if x.shape[dim] % self.overlap.group.size():
            raise ValueError(
                f"a sequence of {x.shape[dim]} cannot be divided equally among "
                f"{self.overlap.group.size()} ranks: pad it"
            )

    def _input_placement(self, x: Tensor) -> Shard:
        return Shard(x.dim() - 1)

    def _output_placement(self, y: Tensor, dim: int) -> Shard:
        return Shard(dim)

    def _shard_rows(self, x: Tensor, dim: int) -> int:
        return x.shape[dim] // self.overlap.group.size()

    def _sent_features(self, x: Tensor, weight: Tensor) -> int:
        return len(weight)


def overlap_layer(linear: nn.Linear, kind: type[OverlappedLinear], layout: Layout) -> nn.Module:
    """Change the class of a layer, whose parameters are DTensors, to ``kind``."""
    linear.__class__ = kind
    assert isinstance(linear, OverlappedLinear)
    linear.overlap = LayerStats(layout.mesh.get_group(), layout.given_chunks or 0)
    linear._layout = layout
    return linear
