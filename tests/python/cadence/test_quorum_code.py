"""The gradient code of a quorum: which sums of parts each rank sends, and how they are decoded."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from q7x2._quorum_code import Code


@pytest.mark.parametrize(("ranks", "copies"), [(4, 2), (6, 3), (5, 2), (7, 3), (4, 4), (3, 1)])
def test_any_ranks_but_copies_less_one_have_the_exact_sum(ranks: int, copies: int) -> None:
    code = Code(ranks, copies)
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
