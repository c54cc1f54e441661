"""Successive halving: which of many settings is worth a validation?

All settings run beside the old one with a few seeds. The better half stays and runs with new seeds,
until one is left. The rounds share the budget equally. So later rounds, with fewer settings, have
more pairs each. See K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and
Hyperparameter Optimization" (AISTATS 2016).

A setting counts as much as it gains on the network where it gains least. A setting that fails is
left out.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Sequence

from q7x2.experiment.tune_file import Network, Tuning

Setting = tuple[str, ...]
# Runs settings, the old one among them, with some seeds on one network. A setting that failed with
# one of the seeds is not in the result. The others have one metric per seed.
Measure = Callable[[Network, Sequence[int], Sequence[Setting]], dict[Setting, list[float]]]


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a search ended.

    Attributes:
        winner: The setting that was left; None if all failed.
        gains: By network, the median relative gain of the winner over the old setting; 0.1: it is
            10 % better. These are too large: the search chose the winner for them.
        pairs: How many pairs of runs each gain has.
        failed: Settings that were left out, because a run of them failed.
    """

    winner: Setting | None
    gains: dict[str, float]
    pairs: int
    failed: list[Setting]


def candidates(tuning: Tuning) -> list[Setting]:
    """What the search tries: all settings, or as many as the budget allows, drawn by chance."""
    number = tuning.settings
    # Each round needs at least one pair. Counted up, since there may be millions of settings.
    affordable = 1
    while affordable < number and rounds(tuning, affordable + 1)[0] > 0:
        affordable += 1
    chosen: Sequence[int] = range(number)
    if affordable < number:
        chosen = sorted(random.Random(0).sample(range(number), affordable))
    return [tuning.setting(each) for each in chosen]


def rounds(tuning: Tuning, settings: int) -> list[int]:
    """How many pairs of runs each setting has per network, in each round."""
    number = max(1, math.ceil(math.log2(settings)))
    pairs = []
    for _ in range(number):
        pairs.append(tuning.budget // (number * len(tuning.networks) * (settings + 1)))
        settings = math.ceil(settings / 2)
    return pairs


def search(tuning: Tuning, gain: Callable[[float, float], float], measure: Measure) -> Found:
    """Look for the best setting.

    Args:
        gain: The relative gain of a metric over that of the old setting, in this order: old, new.
        measure: Runs settings.
    """
    left = candidates(tuning)
    failed: list[Setting] = []
    gains: dict[tuple[Setting, str], list[float]] = {}

    def median(setting: Setting, network: Network) -> float:
        return statistics.median(gains[setting, network.name])

    seed = max(tuning.seeds) + 1
    done = 0
    for pairs in rounds(tuning, len(left)):
        seeds = range(seed + done, seed + done + pairs)
        for network in tuning.networks:
            found = measure(network, seeds, [tuning.old, *left])
            failed += [each for each in left if each not in found]
            left = [each for each in left if each in found]
            for each in left:
                gains.setdefault((each, network.name), []).extend(
                    gain(*pair) for pair in zip(found[tuning.old], found[each], strict=True)
                )
        done += pairs
        if not left:
            return Found(None, {}, done, failed)
        # Sorting is stable: of equal settings the first one stays.
        left.sort(key=lambda each: -min(median(each, on) for on in tuning.networks))
        left = left[: math.ceil(len(left) / 2)]
    winner = left[0]
    medians = {each.name: median(winner, each) for each in tuning.networks}
    return Found(winner, medians, done, failed)
