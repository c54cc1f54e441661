"""Runs an experiment: variants and baseline in turns, one run after the other, with resumption.

For each seed the baseline and all variants run once, in an order that is drawn from the seed, so
that a slow phase of the machine meets all of them. Each run has a directory with its output and its
ledger. A line of ``results.jsonl`` is written when a run has succeeded; what has a line is not run
again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from q7x2._core.sign_test import interval
from q7x2.experiment import folder as experiment_folder
from q7x2.experiment.file import Experiment, Program
from q7x2.experiment.program import Case, ExperimentError, run_once

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One variant beside the baseline.

    Attributes:
        baseline: The median of the baseline's metric.
        value: The median of the variant's metric.
        change: The median of the paired relative differences; 0.1: the variant's metric is 10 %
            larger.
        low, high: The interval of that median.
        verdict: ``"better"``, ``"worse"`` or ``"undecided"``.
    """

    variant: str
    baseline: float
    value: float
    change: float
    low: float
    high: float
    verdict: str


def run(
    experiment: Experiment, directory: pathlib.Path, say: Callable[[str], None]
) -> list[Verdict]:
    """Run what is missing, and judge. ``say`` is told how far it is.

    Raises:
        ExperimentError: A run failed. What has succeeded is kept.
        OSError: The directory cannot be written to.
    """
    experiment_folder.claim(experiment, directory)
    values: dict[tuple[int, str], float] = {
        (row["seed"], row["value"]): row["metric"] for row in experiment_folder.rows(directory)
    }
    variable = experiment.variable
    names = [variable.baseline, *variable.variants]
    program = Case(experiment.launcher, experiment.environment)
    cases = [(seed, value) for seed in experiment.seeds for value in in_turn(names, seed)]
    for number, (seed, value) in enumerate(cases, 1):
        if (seed, value) in values:
            continue
        say(f"run {number} of {len(cases)}: {variable.name}={value}, seed {seed}")
        folder = directory / "runs" / f"seed{seed}-value{names.index(value)}"
        metric = run_once(experiment, seed, program.having([variable], [value]), folder)
        experiment_folder.add(directory, {"seed": seed, "value": value, "metric": metric})
        values[seed, value] = metric
    before = [values[seed, variable.baseline] for seed in experiment.seeds]
    verdicts = [
        judge(
            experiment,
            variant,
            before,
            [values[seed, variant] for seed in experiment.seeds],
            experiment.confidence,
        )
        for variant in variable.variants
    ]
    text = json.dumps([dataclasses.asdict(each) for each in verdicts], indent=2)
    (directory / "verdicts.json").write_text(text + "\n")
    return verdicts


def in_turn(values: Sequence[T], seed: int) -> list[T]:
    """The order in which the values of one seed run."""
    return random.Random(seed).sample(values, len(values))


def judge(
    experiment: Program,
    variant: str,
    before: Sequence[float],
    after: Sequence[float],
    confidence: float,
) -> Verdict:
    """A variant's metrics beside those of the baseline, in pairs.

    Raises:
        ExperimentError: A metric of the baseline is not positive.
    """
    changes = [change(experiment, *pair) for pair in zip(before, after, strict=True)]
    low, high = interval(changes, confidence)
    return Verdict(
        variant=variant,
        baseline=statistics.median(before),
        value=statistics.median(after),
        change=statistics.median(changes),
        low=low,
        high=high,
        verdict=verdict_of(low, high, experiment.margin, experiment.is_larger_better),
    )


def change(experiment: Program, before: float, after: float) -> float:
    """The relative change of one pair.

    Raises:
        ExperimentError: The baseline's metric is not positive.
    """
    if before <= 0:
        raise ExperimentError(
            f"expected a positive {experiment.metric} of the baseline, got {before:g}"
        )
    return after / before - 1


def verdict_of(low: float, high: float, margin: float, is_larger_better: bool) -> str:
    """What an interval of relative changes says."""
    if low > margin:
        return "better" if is_larger_better else "worse"
    if high < -margin:
        return "worse" if is_larger_better else "better"
    return "undecided"


def lines(experiment: Experiment, verdicts: Sequence[Verdict]) -> list[str]:
    """The report, without an end of line."""
    variable = experiment.variable
    found = [
        f"{experiment.name}: {experiment.metric}, {variable.name}={variable.baseline} against "
        f"others, {len(experiment.seeds)} pairs"
    ]
    for each in verdicts:
        found.append(
            f"{each.variant}: {each.verdict}; {each.value:.6g} against {each.baseline:.6g}, "
            f"{100 * each.change:+.2f} % ({100 * each.low:+.2f} to {100 * each.high:+.2f} at "
            f"{100 * experiment.confidence:.4g} %)"
        )
    return found
