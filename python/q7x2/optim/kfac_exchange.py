"""What K-FAC's ranks tell each other: means of factors, and inverses from their owners.

Factors and their inverses are symmetric, so messages hold upper triangles, row by row::

    factors     all-reduce of | triangles of all layers | which layers this rank used |
    inverses    rank r inverts its factors, then | triangles of rank r | by a broadcast from r

A broadcast sends each inverse once and nothing else. An all-gather would pad the share of every
rank to the largest one, and send also from ranks that own nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Factors = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Inversion:
    """One inverse that is due.

    Attributes:
        dim: Rows of the matrix.
        make: Returns the inverse, float32 of shape [dim, dim]; only its owner calls it.
    """

    dim: int
    make: Callable[[], Tensor]


def triangle(dim: int) -> int:
    """Elements of an upper triangle."""
    return dim * (dim + 1) // 2


def pack(matrices: Sequence[Tensor], out: Tensor) -> None:
    """Write the upper triangles of symmetric matrices to the vector ``out``, one by one."""
    offset = 0
    for matrix in matrices:
        count = triangle(len(matrix))
        torch.masked_select(matrix, _upper(matrix), out=out[offset : offset + count])
        offset += count


def unpack(flat: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """The symmetric matrices whose upper triangles lie in ``flat``, one by one."""
    matrices, offset = [], 0
    for dim in dims:
        count = triangle(dim)
        matrix = flat.new_empty(dim, dim)
        upper = _upper(matrix)
        for view in (matrix, matrix.t()):
            view.masked_scatter_(upper, flat[offset : offset + count])
        matrices.append(matrix)
        offset += count
    return matrices


def mean_factors(
    mine: Sequence[Factors | None],
    dims: Sequence[tuple[int, int]],
    device: torch.device,
    group: ProcessGroup,
) -> tuple[list[Factors | None], int]:
    """The mean of each layer's factors over the ranks that used it; a collective call.

    Args:
        mine: This rank's, by layer; None: not used.
        dims: Dimensions of both factors, by layer.

    Returns:
        The means, None for layers that no rank used, and the bytes of the message. Ranks receive
        the same bits.
    """
    total = sum(triangle(a) + triangle(g) for a, g in dims)
    flat = torch.zeros(total + len(dims), device=device)
    offset = 0
    for factors, (a, g) in zip(mine, dims, strict=True):
        count = triangle(a) + triangle(g)
        if factors is not None:
            pack(factors, flat[offset : offset + count])
        offset += count
    flat[total:] = torch.tensor([float(factors is not None) for factors in mine])
    dist.all_reduce(flat, group=group)
    means: list[Factors | None] = []
    offset = 0
    for users, (a, g) in zip(flat[total:].tolist(), dims, strict=True):
        count = triangle(a) + triangle(g)
        part = flat[offset : offset + count]
        offset += count
        if users == 0:
            means.append(None)
            continue
        first, second = unpack(part / users, (a, g))
        means.append((first, second))
    return means, 4 * flat.numel()


def owners_of(dims: Sequence[int], world_size: int) -> list[int]:
    """Who inverts matrices of these dimensions, so that the largest load is small.

    The largest matrix goes first, each to the rank with the least work so far; an inverse costs
    dim**3. It is within 4/3 of the best assignment (Graham 1969).
    """
    loads, owners = [0] * world_size, [0] * len(dims)
    for index in sorted(range(len(dims)), key=lambda each: (-dims[each], each)):
        owner = loads.index(min(loads))
        owners[index] = owner
        loads[owner] += dims[index] ** 3
    return owners


def exchange_inverses(
    due: Sequence[Inversion], device: torch.device, group: ProcessGroup
) -> tuple[list[Tensor], int]:
    """Invert what this rank owns, and receive the rest; a collective call.

    Args:
        due: Equal on all ranks but for the values of the matrices.

    Returns:
        All inverses in the order of ``due``, and the bytes of the messages.
    """
    owners = owners_of([each.dim for each in due], group.size())
    shares = {rank: [each for each in range(len(due)) if owners[each] == rank] for rank in owners}
    messages = {
        rank: torch.empty(sum(triangle(due[each].dim) for each in share), device=device)
        for rank, share in shares.items()
    }
    if group.rank() in shares:
        pack([due[each].make() for each in shares[group.rank()]], messages[group.rank()])
    works: dict[int, Any] = {
        rank: dist.broadcast(messages[rank], group=group, group_src=rank, async_op=True)
        for rank in sorted(messages)
    }
    inverses: list[Tensor] = [torch.empty(0)] * len(due)
    for rank, work in works.items():
        work.wait()
        matrices = unpack(messages[rank], [due[each].dim for each in shares[rank]])
        for each, matrix in zip(shares[rank], matrices, strict=True):
            inverses[each] = matrix
    return inverses, sum(4 * message.numel() for message in messages.values())


def from_rank_0(flags: Sequence[bool], device: torch.device, group: ProcessGroup) -> list[bool]:
    """Rank 0's flags, on all ranks; a collective call."""
    bits = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.broadcast(bits, group=group, group_src=0)
    return [bool(bit) for bit in bits.tolist()]


def _upper(matrix: Tensor) -> Tensor:
    return torch.ones(matrix.shape, dtype=torch.bool, device=matrix.device).triu_()
