"""How the parameters of one FSDP param group lie in what its collectives send.

FSDP gives its collectives one row per rank: the rank's shards of all parameters, one after the
other. Packed, a row has two parts::

    row     | weight 0 | bias 0 | weight 1      | bias 1 |
    coded   | weight 0 .... | weight 1      ....|              float32, goes through a codec
    whole   | bias 0 | bias 1 |                                as it is

Each coded parameter begins a group of elements that share a scale, and zeros fill its last group.
So no scale serves two parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from q7x2._core.extension import load


@dataclass(frozen=True)
class Piece:
    """One parameter.

    Attributes:
        numel: Elements of one rank's shard, with FSDP's padding.
        shape: That of the whole parameter.
        dim: The dimension that is sharded.
        length: In the packed row: ``numel``, filled up to whole groups if it is coded.
    """

    name: str
    numel: int
    shape: tuple[int, ...]
    dim: int
    is_coded: bool
    length: int


class Layout:
    """The pieces of a row, and the ways between FSDP's rows and packed ones."""

    def __init__(self, pieces: Sequence[Piece], world_size: int) -> None:
        self.pieces = tuple(pieces)
        self.world_size = world_size
        self.numel = sum(piece.numel for piece in pieces)
        self.coded_numel = sum(piece.length for piece in pieces if piece.is_coded)
        self.whole_numel = sum(piece.length for piece in pieces if not piece.is_coded)
        self._rows = load().ShardRows([(p.numel, p.length, p.is_coded) for p in pieces])
        self._packed_sizes = {
            is_coded: [
                length
                for piece in pieces
                if piece.is_coded == is_coded
                for length in (piece.numel, piece.length - piece.numel)
            ]
            for is_coded in (True, False)
        }

    def new_coded(self, rows: int) -> torch.Tensor:
        """Zeros for the coded part of ``rows`` rows, float32 on the CPU."""
        return torch.zeros(rows, self.coded_numel)

    def pack(
        self, rows: torch.Tensor, number: int, divisor: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The coded part of FSDP's ``number`` rows, divided, in float32, and the whole part as it
        is; both on the CPU."""
        parts: tuple[torch.Tensor, torch.Tensor] = self._rows.pack(rows.cpu(), number, divisor)
        return parts

    def unpack(
        self, coded: torch.Tensor, whole: torch.Tensor, rows: torch.Tensor, factor: float = 1.0
    ) -> None:
        """The inverse of `pack`: fills ``rows``."""
        if rows.is_cpu:
            self._rows.unpack(coded, whole, rows, factor)
        else:
            on_host = torch.empty_like(rows, device="cpu")
            self._rows.unpack(coded, whole, on_host, factor)
            rows.copy_(on_host)

    def _split(self, packed: torch.Tensor, is_coded: bool) -> tuple[torch.Tensor, ...]:
        """Each piece of a packed part, and what fills its last group."""
        return tuple(torch.split(packed, self._packed_sizes[is_coded], dim=1))

    def _views(self, coded: torch.Tensor, whole: torch.Tensor) -> list[torch.Tensor]:
        """Views of each piece, in FSDP's order."""
        parts = {
            True: iter(self._split(coded, is_coded=True)[::2]),
            False: iter(self._split(whole, is_coded=False)[::2]),
        }
        return [next(parts[piece.is_coded]) for piece in self.pieces]

    def coded_views(self, coded: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """(name, its part of the rows) of each coded parameter, without what fills its groups."""
        pieces = (piece for piece in self.pieces if piece.is_coded)
        views = self._split(coded, is_coded=True)[::2]
        return [(piece.name, view) for piece, view in zip(pieces, views, strict=True)]

    def moved(self, coded: torch.Tensor, other: Layout) -> torch.Tensor:
        """The coded part as ``other`` has it: the same parameters, in groups of another length."""
        there = other.new_coded(len(coded))
        for (_, view), (_, old) in zip(
            other.coded_views(there), self.coded_views(coded), strict=True
        ):
            view.copy_(old)
        return there

    def parameters(
        self, coded: torch.Tensor, whole: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Copies of whole parameters, by name, of the rows of all ranks; those in ``whole`` only if
        it is given."""
        placeholder = coded.new_empty(len(coded), self.whole_numel) if whole is None else whole
        views = self._views(coded, placeholder)
        return {
            piece.name: _joined(piece, view, self.world_size)
            for piece, view in zip(self.pieces, views, strict=True)
            if piece.is_coded or whole is not None
        }

    def fill(
        self,
        parameters: dict[str, torch.Tensor],
        coded: torch.Tensor,
        whole: torch.Tensor | None = None,
    ) -> None:
        """The inverse of `parameters`; what is not there becomes zero."""
        coded.zero_()
        placeholder = coded.new_empty(len(coded), self.whole_numel) if whole is None else whole
        for piece, view in zip(self.pieces, self._views(coded, placeholder), strict=True):
            if (piece.is_coded or whole is not None) and piece.name in parameters:
                _split(piece, parameters[piece.name], view, self.world_size)


def _joined(piece: Piece, rows: torch.Tensor, world_size: int) -> torch.Tensor:
    """A parameter of its ranks' shards."""
    if piece.dim == 0 or not piece.shape:
        rest = torch.Size(piece.shape[1:])
        return rows.reshape(-1, *rest)[: (piece.shape or (1,))[0]].reshape(piece.shape).clone()
    shape = _shard_shape(piece, world_size)
    return torch.cat([row.reshape(shape) for row in rows], dim=piece.dim)


def _split(piece: Piece, whole: torch.Tensor, rows: torch.Tensor, world_size: int) -> None:
    """The inverse of `_joined`: fills ``rows``."""
    if piece.dim == 0 or not piece.shape:
        flat = torch.zeros(rows.numel(), dtype=rows.dtype)
        flat[: whole.numel()] = whole.reshape(-1)
        rows.copy_(flat.view(rows.shape))
        return
    for row, part in zip(rows, whole.chunk(world_size, dim=piece.dim), strict=True):
        row.copy_(part.reshape(-1))


def _shard_shape(piece: Piece, world_size: int) -> tuple[int, ...]:
    shape = list(piece.shape)
    shape[piece.dim] //= world_size
    return tuple(shape)


def pieces_of(
    fsdp_params: Sequence[Any], names: dict[int, str], codec: Any, compresses: Any
) -> list[Piece]:
    """Those of a param group's parameters.

    Args:
        names: Names of the sharded parameters, by ``id``.
        codec: The codec of coded parameters; None: nothing is coded.
        compresses: Called with a name and a number of dimensions: whether the parameter is coded.
    """
    pieces = []
    for parameter in fsdp_params:
        name = names[id(parameter.sharded_param)]
        numel = parameter.padded_sharded_param_size.numel()
        shape = tuple(parameter._orig_size)
        is_coded = codec is not None and numel > 0 and compresses(name, len(shape))
        group = max(codec.group, 1) if is_coded else 1
        pieces.append(
            Piece(
                name,
                numel,
                shape,
                parameter.fsdp_placement.dim,
                is_coded,
                -(-numel // group) * group,
            )
        )
    return pieces
