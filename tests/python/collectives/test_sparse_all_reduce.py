"""all_reduce of sparse tensors, whose indices differ between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from values import FEW, assert_bits, f32, integers, meet
from wrong_calls import ERRORS, breakable_group, works_still


def _sparse(rank: int, world_size: int, dense: tuple[int, ...]) -> torch.Tensor:
    """Rows rank, rank + 1 and 0 of world_size + 2 rows, the last two coalescible."""
    rows = torch.tensor([[rank, rank + 1, 0, 0]])
    values = integers(rank, (4, *dense), f32)
    return torch.sparse_coo_tensor(rows, values, (world_size + 2, *dense))


@pytest.mark.parametrize("dense", [(), (3,), (2, 5)])
@pytest.mark.ranks(1, *FEW)
def test_all_reduce_sparse(world_size: int, dense) -> None:
    tensor = _sparse(dist.get_rank(), world_size, dense).coalesce()
    dist.all_reduce(tensor)
    expected = sum(_sparse(r, world_size, dense).to_dense() for r in range(world_size))
    assert tensor.is_sparse
    assert tensor.is_coalesced()
    assert_bits(tensor.to_dense(), expected)


@pytest.mark.ranks(*FEW)
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


@pytest.mark.ranks(*FEW)
def test_all_reduce_sparse_two_sparse_dimensions(world_size: int) -> None:
    me = dist.get_rank()

    def of(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[0, rank], [rank, 1]], [1.0, 2.0], (4, 4))

    tensor = of(me).coalesce()
    dist.all_reduce(tensor)
    assert_bits(tensor.to_dense(), sum(of(r).to_dense() for r in range(world_size)))


def _drawn(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of which most ranks have the hot ones, some twice; not coalesced."""
    generator = torch.Generator().manual_seed(rank)
    rows = (torch.rand(300, generator=generator) ** 4 * 2_000).long()
    values = torch.randn(300, 6, generator=generator).mul(8)
    return torch.sparse_coo_tensor(rows[None], values.to(dtype), (2_000, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.ranks(2, 3)
def test_overlapping_rows_have_the_bits_of_gloo(dtype: torch.dtype) -> None:
    mine = _drawn(dist.get_rank(), dtype)
    gloo = mine.clone()
    dist.all_reduce(gloo, group=dist.new_group(backend="gloo"))
    dist.all_reduce(mine)
    gloo = gloo.coalesce()
    assert mine.is_coalesced()
    assert torch.equal(mine.indices(), gloo.indices())
    assert_bits(mine.values(), gloo.values())


@pytest.mark.ranks(3)
def test_16_bit_sums_are_rounded_once(world_size: int) -> None:
    mine = _drawn(dist.get_rank(), torch.bfloat16)
    dist.all_reduce(mine)
    parts = [_drawn(rank, torch.bfloat16).coalesce() for rank in range(world_size)]
    expected = sum(part.to_dense().float() for part in parts).bfloat16()
    assert_bits(mine.to_dense(), expected)


@pytest.mark.ranks(2)
def test_sparse_calls_do_not_block(world_size: int) -> None:
    """A rank may wait for another call of the other rank between the call and its wait."""
    mine = _drawn(dist.get_rank(), f32)
    if dist.get_rank() == 0:
        work = dist.all_reduce(mine, async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(mine)
    expected = sum(_drawn(rank, f32).coalesce().to_dense() for rank in range(world_size))
    assert_bits(mine.to_dense(), expected)


@pytest.mark.ranks(2, fresh=True)
def test_other_shapes_are_a_disagreement() -> None:
    size = 4 + dist.get_rank()
    with pytest.raises(dist.DistBackendError, match=r"sparse \[4, 4\]"):
        dist.all_reduce(torch.eye(size).to_sparse())


def _unsound(indices: list[list[int]], values: torch.Tensor, **options: bool) -> torch.Tensor:
    """Of shape (4, 3). torch checks indices only if it is asked to."""
    return torch.sparse_coo_tensor(indices, values, (4, 3), check_invariants=False, **options)


def _wrong_sparse_tensors() -> dict[str, torch.Tensor]:
    two = torch.ones(2, 3)
    made = {
        f"row {row}": _unsound([[0, row]], two)
        for row in (-1, 4, 5, 100, 1 << 20, 1 << 62, -(1 << 62), -(1 << 63), (1 << 63) - 1)
    }
    made["a column"] = _unsound([[0, 1], [0, 3]], torch.ones(2))
    made["both add up to a row"] = _unsound([[0, 5], [0, -7]], torch.ones(2))
    made["coalesced and out of range"] = _unsound([[0, 9]], two, is_coalesced=True)
    made["coalesced and out of order"] = _unsound([[2, 1]], two, is_coalesced=True)
    made["coalesced and twice"] = _unsound([[1, 1]], two, is_coalesced=True)
    made["values without memory"] = _unsound([[0, 1]], two.clone())
    made["values without memory"]._values().untyped_storage().resize_(4)
    made["indices without memory"] = _unsound([[0, 1]], two)
    made["indices without memory"]._indices().untyped_storage().resize_(0)
    return made


@pytest.mark.beyond("gloo", "adds up whatever it gets")
@pytest.mark.ranks(2, 3)
def test_a_sparse_tensor_that_is_unsound_is_refused_where_it_is() -> None:
    """On the caller, before anything is sent; the group goes on."""
    for what, tensor in _wrong_sparse_tensors().items():
        print(what)
        with pytest.raises(ERRORS):
            dist.all_reduce(tensor)
        if "coalesced" not in what:
            sound = torch.eye(4, 3).to_sparse(tensor.sparse_dim())
            with pytest.raises(ERRORS):
                dist.group.WORLD.allreduce([sound, tensor])
    works_still()


def _go_on(group: dist.ProcessGroup, *tensors: torch.Tensor) -> None:
    """Sum ``tensors`` and then others, until a call raises."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    while True:
        dist.all_reduce(torch.ones(1), group=group)


@pytest.mark.beyond("gloo", "adds up whatever it gets")
@pytest.mark.parametrize("row", [-1, 4, 20, 1 << 40])
@pytest.mark.ranks(3)
def test_who_waits_for_an_unsound_tensor_hears_of_its_rank(row: int) -> None:
    """One rank's tensor is wrong: it raises, and when it goes on or leaves, so do the others."""
    me = dist.get_rank()
    with breakable_group() as group:
        tensor = torch.eye(4, 3).to_sparse(1)
        if me == 1:
            with pytest.raises(ERRORS, match=r"(?i)index|indices"):
                dist.all_reduce(_unsound([[0, row]], torch.ones(2, 3)), group=group)
            with pytest.raises(dist.DistBackendError):
                _go_on(group)
        else:
            with pytest.raises(dist.DistBackendError, match="rank 1"):
                _go_on(group, tensor)
        meet()
    works_still()
