"""One seed per run; test_explanations.py shows that a run prints it."""

from __future__ import annotations

import pytest
import seeds


@pytest.mark.ranks(2, init="none")
def test_ranks_have_the_seed_of_the_run(expected: int) -> None:
    assert seeds.seed() == expected


@pytest.fixture
def expected() -> int:
    return seeds.seed()


def test_a_seed_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "x")
    with pytest.raises(ValueError, match="Q7X2_RANDOM_SEED=x"):
        seeds.seed()


def test_a_seed_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seeds.VARIABLE)
    assert seeds.seed() == seeds.seed() > 0
