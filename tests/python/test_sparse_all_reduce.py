"""all_reduce of sparse tensors, whose indices differ between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import assert_bits, f32, integers


def _sparse(rank: int, world_size: int, dense: tuple[int, ...]) -> torch.Tensor:
    """Rows rank, rank + 1 and 0 of world_size + 2 rows, the last two coalescible."""
    rows = torch.tensor([[rank, rank + 1, 0, 0]])
    values = integers(rank, (4, *dense), f32)
    return torch.sparse_coo_tensor(rows, values, (world_size + 2, *dense))


@pytest.mark.parametrize("dense", [(), (3,), (2, 5)])
@pytest.mark.ranks(1, 2, 3)
def test_all_reduce_sparse(world_size: int, dense) -> None:
    tensor = _sparse(dist.get_rank(), world_size, dense).coalesce()
    dist.all_reduce(tensor)
    expected = sum(_sparse(r, world_size, dense).to_dense() for r in range(world_size))
    assert tensor.is_sparse
    assert tensor.is_coalesced()
    assert_bits(tensor.to_dense(), expected)


@pytest.mark.ranks(2, 3)
def test_all_reduce_sparse_with_nothing_on_a_rank(world_size: int) -> None:
    me = dist.get_rank()
    tensor = _sparse(me, world_size, (3,)).coalesce()
    if me == 1:
        tensor = torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.long), torch.empty(0, 3), (world_size + 2, 3)
        ).coalesce()
    dist.all_reduce(tensor)
    parts = [_sparse(r, world_size, (3,)).to_dense() for r in range(world_size) if r != 1]
    assert_bits(tensor.to_dense(), sum(parts))


@pytest.mark.ranks(2, 3)
def test_all_reduce_sparse_two_sparse_dimensions(world_size: int) -> None:
    me = dist.get_rank()

    def of(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[0, rank], [rank, 1]], [1.0, 2.0], (4, 4))

    tensor = of(me).coalesce()
    dist.all_reduce(tensor)
    assert_bits(tensor.to_dense(), sum(of(r).to_dense() for r in range(world_size)))
