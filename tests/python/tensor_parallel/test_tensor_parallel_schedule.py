"""In which pieces the messages of tensor-parallel layers travel, and how many there are."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from q7x2.tensor_parallel.choice import Products, choose, predict_gather, predict_scatter
from q7x2.tensor_parallel.exchange import Gather, Scatter, pieces
from values import assert_bits, meet


def test_pieces_cover_the_rows() -> None:
    assert pieces(7, 3) == [(0, 2), (2, 2), (4, 3)]
    assert pieces(2, 5) == [(0, 1), (1, 1)]
    assert pieces(0, 4) == []


@pytest.mark.ranks(2)
def test_own_rows_need_nobody_else() -> None:
    """Rank 1 begins after rank 0 has used its own rows."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    mine = torch.full((4, 1000), float(rank))
    if rank == 1:
        meet()
    gather = Gather(mine, 0, 2, group)
    arrivals = iter(gather)
    rows, begins = next(arrivals)
    assert_bits(rows, mine.unsqueeze(0))
    assert begins == [4 * rank]
    assert_bits(gather.full[4 * rank : 4 * rank + 4], mine)
    if rank == 0:
        meet()
    theirs = torch.full((1, 2, 1000), 1.0 - rank)
    for (rows, begins), begin in zip(arrivals, (4 - 4 * rank, 6 - 4 * rank), strict=True):
        assert_bits(rows, theirs)
        assert begins == [begin]
    assert gather.full.mean(1).tolist() == [0.0] * 4 + [1.0] * 4


@pytest.mark.ranks(1, 3)
def test_pieces_of_all_ranks_are_made_together_and_added_up() -> None:
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    ranks = group.size()
    addends = torch.arange(5.0 * ranks).view(1, 5 * ranks, 1) * (rank + 1)
    scatter = Scatter((1, 5, 1), 1, 2, group)
    order = list(scatter.order())
    assert order == [([5 * r for r in range(ranks)], 2), ([5 * r + 2 for r in range(ranks)], 3)]
    for begins, length in order:
        scatter.put(torch.stack([addends.narrow(1, begin, length) for begin in begins]))
    total = torch.arange(5.0 * rank, 5.0 * rank + 5).view(1, 5, 1) * sum(range(1, ranks + 1))
    assert_bits(scatter.finish(addends, torch.tensor([0.5])), total + 0.5)


def test_predictions() -> None:
    # One piece: 4 s of own products, the message is there at 8 s, 4 s of products of the other's.
    assert predict_gather(1, product=4, message=8, own=4) == 12
    assert predict_gather(2, product=2, message=4, own=4) == 10
    # All products, then the message; with two pieces, half of the products overlap.
    assert predict_scatter(1, product=8, message=4) == 12
    assert predict_scatter(2, product=4, message=2) == 10
    assert predict_scatter(2, product=2, message=4) == 10


@pytest.mark.parametrize("is_gather", [True, False])
def test_the_number_of_pieces_is_that_of_the_fastest_prediction(is_gather: bool) -> None:
    products = Products(4.0, {1: 4.0, 2: 2.0, 4: 1.2})
    faster = Products(3.0, {1: 3.0, 2: 2.0, 4: 1.0})
    best, *others = choose([products, faster], lambda size: size + 0.0, 8, is_gather)
    assert (best.chunks, best.product_seconds) == (4, 1.2)
    assert best.seconds == pytest.approx(9.2)
    assert [each.chunks for each in others] == [2, 1]
    dear = choose([products, products], lambda size: size + 100.0, 8, is_gather)
    assert dear[0].chunks == 1


def test_of_similar_predictions_that_with_the_fewest_pieces_is_chosen() -> None:
    flat = Products(4.0, {1: 4.0, 2: 2.0, 4: 1.5, 8: 0.74})
    similar, *_ = choose([flat, flat], lambda size: size + 0.0, 8, True)
    assert (similar.chunks, similar.seconds) == (2, 10.0)  # 8 pieces: 9.92 s
