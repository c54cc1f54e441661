"""``BitAllocation`` keeps its promise: no more error than its codec alone, in no more bytes."""

from __future__ import annotations

import random

import pytest
import q7x2

CODEC, CHOICES = "int4:g=128", ["int2:g=128", "int8:g=128", "onebit"]
MOST_BITS = {"int4:g=128": 4.25, "int2:g=128": 2.25, "int8:g=128": 8.25, "onebit": 1.5}


@pytest.mark.parametrize("gradients", [1, 5, 50, 1000])
def test_the_choice_never_loses_more_than_the_codec_alone(gradients: int) -> None:
    for seed in range(10):
        generator = random.Random(seed)
        facts, numels = {}, {}
        for i in range(gradients):
            norm = generator.lognormvariate(0, 2)
            # Errors of a factor of 4 per bit or so, and different for each gradient.
            errors = {
                name: norm**2 * 4 ** (-MOST_BITS[name] * generator.uniform(0.7, 1.0))
                for name in (CODEC, *CHOICES)
            }
            facts[f"w{i}"] = q7x2.policy.GradientFacts(norm, 0.0, 2, errors)
            numels[f"w{i}"] = generator.randrange(128, 100_000)
        policy = q7x2.policy.BitAllocation(CODEC, CHOICES)
        policy.bind(numels)
        decision = policy.decide(1, q7x2.policy.Facts(0, gradients=facts))
        assert decision.parameters.keys() == numels.keys()
        error = budget = 0.0
        for name, gradient in facts.items():
            error += gradient.errors[decision.parameters[name].level] / (gradient.gradient**2)
            budget += gradient.errors[CODEC] / gradient.gradient**2
        assert error <= budget, f"seed {seed}: {error / budget - 1:.1%} more than promised"
