"""``ErrorBudget``'s levels settle, whatever lies between the errors of neighbouring levels."""

from __future__ import annotations

import random
from typing import Any

import pytest
import q7x2

LEVELS = [1, 2, 4, "whole"]  # ranks


def steered(
    errors: dict[str, float], noise: float, seed: int, measurements: int = 40, every: int = 10
) -> q7x2.policy.ErrorBudget:
    """A gradient whose relative error depends on its level, measured so many times."""
    policy = q7x2.policy.ErrorBudget(LEVELS, layer_error=0.5, measure_every=every)
    policy.bind({"w": 4})
    generator = random.Random(seed)
    decision, last = policy.decide(0, None), 0.0
    for step in range(measurements * every):
        facts = q7x2.policy.Facts(step)
        if decision.measures:  # what the last step held back
            gradient = q7x2.policy.GradientFacts(1.0, last, 2)
            facts = q7x2.policy.Facts(step, gradients={"w": gradient})
        chosen = decision.parameters["w"]
        level = "whole" if chosen.whole else chosen.level
        last = errors[level] * (1 + noise * generator.gauss(0, 1))
        decision = policy.decide(step + 1, facts)
    return policy


def moves(policy: q7x2.policy.ErrorBudget) -> list[str]:
    return [event.level for event in policy.history if event.kind == "level"]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("apart", [7.0, 18.0])
def test_a_gradient_settles_at_the_level_within_its_budget(apart: float, every: int) -> None:
    errors = {"1": 0.6, "2": 0.6 / apart, "4": 0.6 / apart**2}
    every_move = [moves(steered(errors, 0.1, seed, every=every)) for seed in range(10)]
    assert every_move.count(["2"]) >= 9, every_move
    assert all(len(levels) <= 3 and levels[-1] == "2" for levels in every_move), every_move


def test_an_error_at_the_limit_moves_the_level_ever_more_rarely() -> None:
    errors = {"1": 0.5, "2": 0.05, "4": 0.005}
    for seed in range(10):
        levels = moves(steered(errors, 0.4, seed, measurements=400))
        assert len(levels) <= 14, f"seed {seed}: {levels}"


def test_beside_a_level_that_holds_nothing_back_it_tries_ever_more_rarely() -> None:
    errors = {"1": 5.0, "2": 2.0, "4": 0.6, "whole": 0.0}
    levels = moves(steered(errors, 0.1, 0, measurements=100))
    assert levels[:3] == ["2", "4", "whole"]
    assert len(levels) <= 12, levels


def test_a_gradient_returns_when_its_error_has_fallen() -> None:
    policy = q7x2.policy.ErrorBudget(LEVELS, layer_error=0.5, measure_every=10)
    policy.bind({"w": 4})

    def measured(step: int, error: float) -> int | None:
        """The rank that follows; None: whole."""
        facts = q7x2.policy.Facts(step, gradients={"w": q7x2.policy.GradientFacts(1.0, error, 2)})
        return policy.decide(step + 1, facts).parameters["w"].rank

    assert measured(0, 0.6) == 2
    assert measured(10, 0.06) == 2  # a ratio of 10
    for step in (20, 30, 40):
        assert measured(step, 0.03) == 2  # 0.3 at rank 1
    other = q7x2.policy.ErrorBudget(LEVELS, layer_error=0.5, measure_every=10)
    other.bind({"w": 4})
    other.load_state_dict(policy.state_dict())
    policy = other
    assert measured(50, 0.03) == 1


def test_residuals_of_the_level_before_do_not_count() -> None:
    policy = q7x2.policy.ErrorBudget(LEVELS, layer_error=0.5, total_error=0.9, measure_every=1)
    policy.bind({"w": 4})

    def measured(step: int, error: float) -> int | None:
        """The rank that follows; None: whole."""
        facts = q7x2.policy.Facts(step, gradients={"w": q7x2.policy.GradientFacts(1.0, error, 2)})
        return policy.decide(step + 1, facts).parameters["w"].rank

    assert measured(0, 0.6) == 2
    assert measured(1, 0.6) == 2  # what the last step at rank 1 held back
    assert measured(2, 0.06) == 2
    assert measured(3, 1.0) is None  # the gradient and the common level go up
    assert measured(4, 1.0) is None
    assert policy.level == 2


def test_old_names_of_its_state_say_the_new_ones() -> None:
    policy: Any = q7x2.policy.Accumulate(2)
    with pytest.raises(AttributeError, match="Accumulate has no attribute 'snapshot': use 'state_"):
        policy.snapshot()

    with pytest.raises(TypeError, match="Mine overrides 'load': a Policy calls it 'load_state_di"):

        class Mine(q7x2.policy.Policy):
            def load(self, snapshot: Any) -> None: ...
