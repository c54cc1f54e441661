"""Lists of tensors whose shapes differ between ranks, at random; where Gloo takes them, as Gloo.

``Q7X2_RANDOM_SEED`` chooses another seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import q7x2
import seeds
import torch
import torch.distributed as dist
from values import (
    FEW,
    GLOO_MOVES,
    assert_bits,
    blank,
    f32,
    integers,
    moved_dtypes,
    payload,
    strided,
    sum_of,
)

Shapes = list[tuple[int, ...]]


def _shapes(chance: random.Random, ranks: int) -> Shapes:
    """One for each rank; some are empty, some take several slices."""
    longest = chance.choice([1, 3, 40, 40, 700])

    def shape() -> tuple[int, ...]:
        return tuple(chance.randint(0, longest) for _ in range(chance.randint(0, 2)))

    return [shape() for _ in range(ranks)]


def _cases(count: int) -> list[tuple[random.Random, Shapes, bool]]:
    """The same on all ranks: what else is to be drawn, the shapes, and ``async_op``."""
    seed, ranks = seeds.seed(), dist.get_world_size()
    print(f"Q7X2_RANDOM_SEED={seed}, {ranks} ranks")
    cases = []
    for number in range(count):
        chance = random.Random(f"{seed}/{ranks}/{number}")
        cases.append((chance, _shapes(chance, ranks), chance.random() < 0.5))
    return cases


def _end(work: dist.Work | None, is_async: bool) -> None:
    assert (work is not None) == is_async
    if work is not None:
        work.wait()


def _as_given(chance: random.Random) -> Callable[[torch.Tensor], torch.Tensor]:
    return strided if chance.random() < 0.3 else lambda tensor: tensor


@pytest.mark.beyond("gloo", "gathers equal sizes only")
@pytest.mark.ranks(*FEW, 4)
def test_gather_takes_uneven_lists(world_size: int) -> None:
    me = dist.get_rank()
    for chance, shapes, is_async in _cases(30):
        dtype, root = chance.choice(moved_dtypes()), chance.randrange(world_size)
        given = _as_given(chance)
        outputs = [given(blank(shape, dtype)) for shape in shapes] if me == root else None
        work = dist.gather(given(payload(me, shapes[me], dtype)), outputs, root, async_op=is_async)
        _end(work, is_async)
        for rank, output in enumerate(outputs or []):
            expected = payload(rank, shapes[rank], dtype)
            assert_bits(
                output.clone(memory_format=torch.contiguous_format),
                expected,
                (root, rank, shapes, dtype),
            )


@pytest.mark.beyond("gloo", "scatters equal sizes only")
@pytest.mark.ranks(*FEW, 4)
def test_scatter_takes_uneven_lists(world_size: int) -> None:
    me = dist.get_rank()
    for chance, shapes, is_async in _cases(30):
        dtype, root = chance.choice(moved_dtypes()), chance.randrange(world_size)
        given = _as_given(chance)
        inputs = None
        if me == root:
            inputs = [given(payload(rank, shape, dtype)) for rank, shape in enumerate(shapes)]
        output = given(blank(shapes[me], dtype))
        _end(dist.scatter(output, inputs, root, async_op=is_async), is_async)
        assert_bits(
            output.clone(memory_format=torch.contiguous_format),
            payload(me, shapes[me], dtype),
            (root, shapes, dtype),
        )


@pytest.mark.beyond("gloo", "gathers equal sizes only")
@pytest.mark.ranks(*FEW, 4)
def test_all_gather_takes_uneven_lists() -> None:
    me = dist.get_rank()
    for chance, shapes, is_async in _cases(30):
        dtype = chance.choice(moved_dtypes())
        given = _as_given(chance)
        outputs = [given(blank(shape, dtype)) for shape in shapes]
        work = dist.all_gather(outputs, given(payload(me, shapes[me], dtype)), async_op=is_async)
        _end(work, is_async)
        for rank, output in enumerate(outputs):
            expected = payload(rank, shapes[rank], dtype)
            assert_bits(
                output.clone(memory_format=torch.contiguous_format), expected, (rank, shapes, dtype)
            )


@pytest.mark.beyond("gloo", "is what this compares with")
@pytest.mark.ranks(*FEW, 4)
def test_reduce_scatter_takes_uneven_lists_as_gloo_does(world_size: int) -> None:
    me, gloo = dist.get_rank(), dist.new_group(backend="gloo")
    for chance, shapes, is_async in _cases(30):
        dtype = chance.choice([each for each in GLOO_MOVES if each is not torch.bool])
        ops = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
        op, given = chance.choice(ops), _as_given(chance)
        inputs = [integers(me, shape, dtype, salt=to) for to, shape in enumerate(shapes)]
        expected = blank(shapes[me], dtype)
        dist.reduce_scatter(expected, [each.clone() for each in inputs], op, group=gloo)
        output = given(blank(shapes[me], dtype))
        work = dist.reduce_scatter(output, [given(each) for each in inputs], op, async_op=is_async)
        _end(work, is_async)
        assert_bits(
            output.clone(memory_format=torch.contiguous_format), expected, (shapes, dtype, op)
        )


@pytest.mark.beyond("gloo", "its algorithms cannot be chosen")
@pytest.mark.ranks(3, 4)
def test_every_algorithm_of_reduce_scatter_takes_uneven_lists(world_size: int) -> None:
    """Long parts next to none."""
    me = dist.get_rank()
    for algorithm in ("halving_doubling", "hierarchical", "multitree", "ring", "sra", "torus"):
        for sizes in ([0, 300_001, 5, 70], [70_001, 0, 1, 0], [1, 2, 0, 400_003]):
            inputs = [integers(me, n, f32, salt=to) for to, n in enumerate(sizes[:world_size])]
            output = blank(sizes[me], f32)
            with q7x2.collectives.algorithm(algorithm):
                dist.reduce_scatter(output, inputs)
            expected = sum_of(world_size, sizes[me], f32, salt=me)
            assert_bits(output, expected, (algorithm, sizes))
