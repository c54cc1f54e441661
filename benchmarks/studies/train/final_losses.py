"""Final losses of a part of the study, compared by seed, for its goals and its tables."""

from __future__ import annotations

from benchmarks.studies.train import inference
from benchmarks.studies.train.study import Study

BAR_IN_WORDS = f"{inference.BAR:g} higher at most, or the interval contains 0"

Goal = tuple[str, str, str, bool]


def differences(study: Study, part: str, base_label: str) -> dict[str, inference.Paired]:
    """For each other method with two seeds or more: how its final loss differs, paired by seed."""
    losses: dict[str, dict[int, float]] = {}
    for cell in study.of(part):
        losses.setdefault(cell["label"], {})[cell["seed"]] = cell["final_loss"]
    base = losses.pop(base_label, {})
    if len(base) < 2:
        return {}
    seeds = {label: sorted(own.keys() & base.keys()) for label, own in losses.items()}
    return {
        label: inference.paired([own[seed] - base[seed] for seed in seeds[label]])
        for label, own in losses.items()
        if len(seeds[label]) > 1
    }


def interval(paired: inference.Paired) -> str:
    """The mean difference and its 95 % interval."""
    return f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})"


def goal(title: str, paired: inference.Paired) -> Goal:
    return title, BAR_IN_WORDS, interval(paired), paired.meets_bar
