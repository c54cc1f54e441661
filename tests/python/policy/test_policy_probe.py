"""Dense probes of ``ErrorBudget``: trainings that are simulated, with harm that is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import q7x2
import torch
from pairs import each_value, nightly
from q7x2.policy.harm import Segments, estimate
from torch import nn

CURVES: dict[str, Callable[[float], float]] = {
    "exp": lambda t: math.exp(-0.02 * t),
    "hyperbola": lambda t: 1 / (1 + t / 20),
}
NOISE = 0.002  # standard deviation of a validation loss, relative to it
LEVELS = [1, 2, 4]  # ranks


def training(
    curve: Callable[[float], float],
    harms: dict[str, float],
    seed: int,
    noise: float = NOISE,
    steps: int = 1000,
    most: int = 1,
) -> q7x2.policy.ErrorBudget:
    """A training that begins at the second level and ends with its ``most``-th move.

    Args:
        harms: By level, the share by which its steps learn less.
    """
    policy = q7x2.policy.ErrorBudget(LEVELS, start=1, probe_every=1, probe_steps=10)
    policy.bind({"w": 4})
    generator = random.Random(seed)
    time = 0.0
    for step in range(steps):
        if len(moves(policy)) >= most:
            break
        if step % 20 == 0 or policy.validation_due(step):
            policy.observe(curve(time) * (1 + noise * generator.gauss(0, 1)), step)
        chosen = policy.decide(step, None).parameters["w"]
        time += 1 if chosen.whole else 1 - harms.get(chosen.level, 0.0)
    return policy


def moves(policy: q7x2.policy.ErrorBudget) -> list[str]:
    return [event.level for event in policy.history if event.kind == "level"]


@pytest.mark.parametrize(("curve", "harm"), each_value(CURVES.keys(), (0.1, 0.25, 0.5)))
def test_harm_is_found_and_never_made_worse(curve: str, harm: float) -> None:
    harms = {"1": 0.5, "2": harm}
    found = 0
    for seed in range(20):
        levels = moves(training(CURVES[curve], harms, seed))
        assert "1" not in levels, f"seed {seed}: {levels}"
        found += levels[:1] == ["4"]
    print(f"{curve}, harm {harm}: found with {found} of the seeds 0 to 19")
    assert found >= 19


@pytest.mark.parametrize("curve", list(CURVES))
def test_compression_without_harm_becomes_stronger(curve: str) -> None:
    loosened = 0
    for seed in range(20):
        levels = moves(training(CURVES[curve], {}, seed))
        loosened += levels[:1] == ["1"]
    print(f"{curve}: loosened with {loosened} of the seeds 0 to 19")
    assert loosened >= 15


@pytest.mark.parametrize("curve", ["hyperbola", nightly("exp", "the same of another curve")])
def test_the_level_settles_between_one_with_harm_and_one_without(curve: str) -> None:
    for seed in range(5):
        policy = training(CURVES[curve], {"1": 0.4}, seed, steps=2000, most=99)
        levels = moves(policy)
        assert len(levels) <= 7, f"seed {seed}: {levels}"
        probes = [event.level for event in policy.history if event.kind == "probe"]
        assert probes.count("1") < len(probes) / 2, f"seed {seed}: {probes}"


@pytest.mark.parametrize("curve", list(CURVES))
@pytest.mark.parametrize("order", [(False, True, True, False), (True, False, False, True)])
def test_an_estimate_does_not_depend_on_the_curve(curve: str, order: tuple[bool, ...]) -> None:
    for harm in (0.0, 0.1, 0.25):
        probes = []
        for begin in (0.0, 50.0, 100.0):
            time = begin
            losses = [CURVES[curve](time)]
            for dense in order:
                time += 10 if dense else 10 * (1 - harm)
                losses.append(CURVES[curve](time))
            probes.append(Segments((10,) * 4, order, tuple(losses)))
        assert abs(estimate(probes, 0.05).mean - harm) < 0.03


def test_losses_without_information_say_nothing() -> None:
    flat = Segments((10,) * 4, (False, True, True, False), (1.0,) * 5)
    assert abs(estimate([flat] * 4, 0.05).beyond - 0.5) < 0.1
    negative = Segments((10,) * 4, (False, True, True, False), (-1.0, -2.0, -3.0, -4.0, -5.0))
    assert abs(estimate([negative] * 2, 0.05).mean) < 0.1


def test_a_probe_goes_on_after_a_checkpoint() -> None:
    def budget() -> q7x2.policy.ErrorBudget:
        policy = q7x2.policy.ErrorBudget(LEVELS, probe_every=1, probe_steps=10)
        policy.bind({"w": 4})
        return policy

    first, seen = budget(), []
    for step in range(0, 200, 10):
        first.observe(math.exp(-0.02 * step), step)
        seen.append(first.decide(step, None).parameters["w"].whole)
        second = budget()
        second.load_state_dict(first.state_dict())
        assert second.state_dict() == first.state_dict()
        first = second
    # A probe, the validation that ends it and the one that begins the next one, of the other order.
    assert seen[:10] == [False, True, True, False, False, True, False, False, True, False]


def real_training(harm: float, seed: int) -> list[str]:
    """The moves of a training on noisy data, in which compressed steps are skipped at that rate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(32, 32, generator=generator) / 32**0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(size: int) -> torch.Tensor:
        x = torch.randn(size, 32, generator=generator)
        y = torch.sin(2 * x @ teacher) + 0.1 * torch.randn(size, 32, generator=generator)
        return nn.functional.mse_loss(model(x), y)

    validation = generator.get_state()
    policy = q7x2.policy.ErrorBudget(LEVELS, start=1, probe_every=1, probe_steps=10)
    policy.bind({"w": 4})
    skipped = 0.0
    for step in range(800):
        if step % 20 == 0 or policy.validation_due(step):
            state = generator.get_state()
            generator.set_state(validation)
            with torch.no_grad():
                policy.observe(loss_of(512).item(), step)
            generator.set_state(state)
        skipped += 0 if policy.decide(step, None).parameters["w"].whole else harm
        if skipped > 1 - 1e-9:
            skipped -= 1
            continue
        optimizer.zero_grad()
        loss_of(64).backward()
        optimizer.step()
        if moves(policy):
            break
    return moves(policy)[:1]


MANY = pytest.mark.nightly("more of the same trainings")


@pytest.mark.parametrize(
    ("harm", "seeds"),
    [(0.2, 5), pytest.param(0.2, 20, marks=MANY), pytest.param(0.1, 20, marks=MANY)],
)
def test_harm_is_found_in_a_real_training(harm: float, seeds: int) -> None:
    levels = [real_training(harm, seed) for seed in range(seeds)]
    print(f"harm {harm}: the first moves with the seeds 0 to {seeds - 1} are {levels}")
    assert ["1"] not in levels
    assert levels.count(["4"]) >= seeds - 1


def test_a_real_training_without_harm_is_compressed_more() -> None:
    levels = [real_training(0.0, seed) for seed in range(5)]
    assert ["4"] not in levels
    assert ["1"] in levels
