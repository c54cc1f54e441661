"""Parallel styles for ``parallelize_module``: linear layers that overlap messages and products."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from q7x2._core.option_checks import check_whole
from q7x2.tensor_parallel.layer import ColwiseLinear, Layout, RowwiseLinear, overlap_layer


class ColwiseOverlap(ColwiseParallel):
    """ColwiseParallel of a Linear whose input is gathered while it is multiplied.

    The input is sharded along the sequence, the output along its last dimension. In the forward,
    each rank multiplies its own rows first, and those of others as they arrive. In the backward,
    gradients of the input travel while those of the weight are computed. docs/tensor_parallel.md
    has the details. Ranks send to each other in pairs, as in CommFuse (Karim et al. 2026, arXiv
    2604.24013).

    >>> from q7x2.tensor_parallel import ColwiseOverlap, RowwiseOverlap
    >>> plan = {"up": ColwiseOverlap(), "down": RowwiseOverlap()}
    >>> parallelize_module(mlp, mesh, plan)  # x: [batch, sequence / ranks, features]

    Args:
        input_layouts: ``Shard(d)``: the dimension of the sequence, which may be negative. A plain
            tensor is this rank's shard, equally long on all ranks. A DTensor has this placement.
        output_layouts: The placement of the output: only ``Shard(-1)``.
        use_local_output: Return a plain tensor instead of a DTensor.
        chunks: Pieces that each shard is sent in. None: the first forward measures products on all
            ranks and takes the best number by the Fabric; 4 if the group is not of q7x2.

    Raises:
        ValueError: A layout or ``chunks`` does not fit; or, from ``parallelize_module``, the mesh
            has several dimensions, the features cannot be divided equally, or the weight is a
            DTensor with another placement. From a forward: the input does not fit.
        TypeError: From ``parallelize_module``: the module is not exactly a Linear.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        chunks: int | None = None,
    ) -> None:
        sequence = Shard(1) if input_layouts is None else input_layouts
        _check_style("ColwiseOverlap", "input_layouts", sequence, chunks)
        if output_layouts not in (None, Shard(-1)):
            raise ValueError(
                f"ColwiseOverlap: output_layouts must be Shard(-1), got {output_layouts}"
            )
        super().__init__(input_layouts=sequence, use_local_output=use_local_output)
        self.chunks = chunks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        linear = _check_layer(self, module, device_mesh, "out_features")
        _partition(self, linear, device_mesh)
        (layout,) = self.input_layouts
        return overlap_layer(
            linear, ColwiseLinear, Layout(device_mesh, layout, self.use_local_output, self.chunks)
        )


class RowwiseOverlap(RowwiseParallel):
    """RowwiseParallel of a Linear whose output is summed over the ranks while it is computed.

    The input is sharded along its last dimension, the output along the sequence. In the forward,
    pieces of all ranks' rows are reduce-scattered while the next ones are multiplied. In the
    backward, each rank multiplies its own rows of the gradient first, and those of others as they
    arrive.

    Args:
        input_layouts: The placement of the input: only ``Shard(-1)``. The sequence must be
            divisible by the number of ranks.
        output_layouts: ``Shard(d)``: the dimension of the sequence, which may be negative.
        use_local_output: As for :class:`q7x2.tensor_parallel.ColwiseOverlap`.
        chunks: As for :class:`q7x2.tensor_parallel.ColwiseOverlap`.

    Raises:
        ValueError: As for :class:`q7x2.tensor_parallel.ColwiseOverlap`.
        TypeError: As for :class:`q7x2.tensor_parallel.ColwiseOverlap`.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        chunks: int | None = None,
    ) -> None:
        sequence = Shard(1) if output_layouts is None else output_layouts
        _check_style("RowwiseOverlap", "output_layouts", sequence, chunks)
        if input_layouts not in (None, Shard(-1)):
            raise ValueError(
                f"RowwiseOverlap: input_layouts must be Shard(-1), got {input_layouts}"
            )
        super().__init__(output_layouts=sequence, use_local_output=use_local_output)
        self.chunks = chunks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        linear = _check_layer(self, module, device_mesh, "in_features")
        _partition(self, linear, device_mesh)
        (layout,) = self.output_layouts
        return overlap_layer(
            linear, RowwiseLinear, Layout(device_mesh, layout, self.use_local_output, self.chunks)
        )


# ---- checks --------------------------------------------------------------------------------------


def _check_style(style: str, name: str, sequence: Placement, chunks: int | None) -> None:
    """Raises ValueError for options that no layer can have."""
    if not isinstance(sequence, Shard) or sequence.dim == -1:
        raise ValueError(
            f"{style}: {name} must be Shard(d) of the sequence's dimension, got {sequence}"
        )
    if chunks is not None:
        check_whole("chunks", chunks, 1)


def _check_layer(style: object, module: nn.Module, mesh: DeviceMesh, features: str) -> nn.Linear:
    """The module, if the style can take it over."""
    name = type(style).__name__
    if type(module) is not nn.Linear:
        raise TypeError(f"{name} needs a torch.nn.Linear, got {type(module).__name__}")
    if mesh.ndim != 1:
        raise ValueError(f"{name} needs a mesh of one dimension, got {mesh}")
    if getattr(module, features) % mesh.size():
        raise ValueError(
            f"{name}: {features}={getattr(module, features)} cannot be divided equally among "
            f"{mesh.size()} ranks"
        )
    return module


def _partition(style: ColwiseOverlap | RowwiseOverlap, linear: nn.Linear, mesh: DeviceMesh) -> None:
    """Make the parameters DTensors with the placements of the style, unless they are already."""
    colwise = isinstance(style, ColwiseOverlap)
    wanted = {"weight": Shard(0 if colwise else 1), "bias": Shard(0) if colwise else Replicate()}
    given = dict(linear.named_parameters())
    if not any(isinstance(parameter, DTensor) for parameter in given.values()):
        distribute_module(linear, mesh, style._partition_linear_fn)
        return
    for name, parameter in given.items():
        placement = parameter.placements if isinstance(parameter, DTensor) else None
        is_here = isinstance(parameter, DTensor) and parameter.device_mesh == mesh
        if not is_here or placement != (wanted[name],):
            raise ValueError(
                f"{name} must be a plain tensor, or a DTensor of {wanted[name]} on the mesh, got "
                f"placements {placement}"
            )
    if linear._forward_pre_hooks or linear._forward_hooks:
        raise ValueError(
            "the layer has hooks already, for example those of another parallel style: apply "
            f"{type(style).__name__} instead of it, not after it"
        )
