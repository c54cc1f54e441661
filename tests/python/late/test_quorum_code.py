"""The gradient code of a quorum: which sums of parts each rank sends, and how they are decoded."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch
from pairs import nightly
from q7x2.late import GradientCode


@pytest.mark.parametrize(("ranks", "copies"), [(4, 2), (6, 3), (5, 2), (7, 3), (4, 4), (3, 1)])
def test_any_ranks_but_copies_less_one_have_the_exact_sum(ranks: int, copies: int) -> None:
    code = GradientCode(ranks, copies)
    parts = torch.randn(ranks, 100, generator=torch.Generator().manual_seed(0))
    sums = []
    for rank in range(ranks):
        assert len(code.parts(rank)) == copies
        sums.append(sum(part.weight * parts[part.index] for part in code.parts(rank)))
    exact = parts.double().sum(0)
    for present in combinations(range(ranks), ranks - copies + 1):
        coefficients = code.coefficients(sum(1 << rank for rank in present))
        assert coefficients is not None
        decoded = sum(coefficients[rank] * sums[rank] for rank in present)
        torch.testing.assert_close(decoded.double(), exact, rtol=1e-4, atol=1e-4)
    if ranks % copies:
        assert code.coefficients((1 << (ranks - copies)) - 1) is None


FEW = (1, 2, 3, 5, 8, 11)
MORE = [nightly(n, "the same with other numbers") for n in range(1, 17) if n not in FEW]


@pytest.mark.parametrize("ranks", [*FEW, *MORE])
def test_every_code_decodes_sums_of_float32(ranks: int) -> None:
    """With neighbours, which are the worst ranks, and with random ones."""
    generator = torch.Generator().manual_seed(ranks)
    choose = random.Random(ranks)
    for copies in range(1, ranks + 1):
        code = GradientCode(ranks, copies)
        parts = torch.randn(ranks, 50, generator=generator)
        exact = parts.double().sum(0)
        sums = []
        for rank in range(ranks):
            assert len(code.parts(rank)) == copies
            sums.append(sum(part.weight * parts[part.index] for part in code.parts(rank)))
        few = ranks - copies + 1
        sets = [[(first + i) % ranks for i in range(few)] for first in range(ranks)]
        sets += [choose.sample(range(ranks), few) for _ in range(20)]
        for present in sets:
            coefficients = code.coefficients(sum(1 << rank for rank in present))
            assert coefficients is not None
            decoded = sum(coefficients[rank] * sums[rank] for rank in present)
            error = float((decoded - exact).norm() / exact.norm())
            assert error < 3e-4, f"{ranks} ranks, {copies} copies, present {present}: {error:.1e}"
            assert error < 6e-8 * (2 + code.amplification) * ranks


def test_a_code_that_loses_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"copies=13 of 32 ranks.*one of 1, 2, 4, 8, 16, 32"):
        GradientCode(32, 13)
    assert GradientCode(32, 2).amplification == 1
    assert GradientCode(33, 2).amplification < 10
