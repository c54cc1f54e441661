"""What the report and the pictures show, computed from the cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.harness import inference
from benchmarks.harness.inference import Paired
from benchmarks.harness.report import Columns, markdown_of
from benchmarks.studies.train import wire
from benchmarks.studies.train.methods import BASELINE, BY_LABEL, TORCH_POWERSGD, UNCOMPRESSED
from benchmarks.studies.train.study import RANKS, Study

Cell = dict[str, Any]
Losses = dict[str, dict[int, float]]
Goal = tuple[str, str, str, bool]

BAR_IN_WORDS = f"{inference.BAR:g} higher at most, or the interval contains 0"

# Rounds that are left out of step times: buckets are laid out anew, and hooks begin.
_FIRST_ROUNDS = 1


@dataclass(frozen=True)
class Speed:
    """A method at one rate; seconds of the slowest rank, bytes of a step and rank.

    Attributes:
        beyond: step time beyond compute, (median, low, high).
        reached: seconds to the baseline's final loss on the held-out data; None: never.
        sooner: the baseline's own `reached` as a multiple of this one.
        expected: payload bytes by the formula; None where it depends on the gradients.
    """

    label: str
    compute: float
    step: float
    beyond: tuple[float, float, float]
    final_loss: float
    reached: float | None
    sooner: float | None
    link_bytes: float
    payload: float
    expected: float | None


def speeds(study: Study, rate: str) -> list[Speed]:
    cells = study.of("speed", rate=rate)
    base = next(cell for cell in cells if cell["label"] == BASELINE)
    target = base["rounds"]["held_out"][-1]
    base_reached = inference.first_at_most(elapsed(base), base["rounds"]["held_out"], target)
    assert base_reached is not None
    return [_speed(cell, target, base_reached) for cell in cells]


def _speed(cell: Cell, target: float, base_reached: float) -> Speed:
    rounds, compute = cell["rounds"], cell["compute"]
    common = slice(_FIRST_ROUNDS, len(compute))
    beyond = [r - c for r, c in zip(rounds["reduced"][common], compute[common], strict=True)]
    reached = inference.first_at_most(elapsed(cell), rounds["held_out"], target)
    at_end = cell["steps"] // cell["turn"] - 1
    packets, link = (
        median(rounds["packets"][_FIRST_ROUNDS:]),
        median(rounds["bytes"][_FIRST_ROUNDS:]),
    )
    formula = cell["formula_bytes"]
    return Speed(
        cell["label"],
        median(compute[common]),
        median(rounds["step"][common]),
        inference.median_interval(beyond),
        rounds["held_out"][at_end],
        reached,
        base_reached / reached if reached else None,
        link,
        wire.payload(link, packets),
        wire.per_rank(formula, RANKS) if formula else None,
    )


def elapsed(cell: Cell) -> list[float]:
    """Seconds of training at the end of each round."""
    return list(itertools.accumulate(cell["rounds"]["seconds"]))


def ratio_beyond(study: Study, rate: str, label: str, other: str) -> tuple[float, float, float]:
    """How many times longer `other`'s step is beyond compute: (median over rounds, low, high)."""
    by_label = study.by_label("speed", rate=rate)
    mine, its = by_label[label], by_label[other]
    common = slice(_FIRST_ROUNDS, len(mine["compute"]))
    steps = [
        {"reduced": cell["rounds"]["reduced"][common], "compute": mine["compute"][common]}
        for cell in (its, mine)
    ]
    return ratio_of_steps(*steps)


def ratio_beyond_long(study: Study, rate: str, label: str) -> tuple[float, float, float]:
    """The same beside the long backward of the part "powersgd", against PyTorch's PowerSGD."""
    by_label = study.by_label("powersgd", rate=rate)
    return ratio_of_steps(by_label[TORCH_POWERSGD], by_label[label])


def ratio_of_steps(longer: Cell, shorter: Cell) -> tuple[float, float, float]:
    """How many times longer the steps of one cell are beyond compute, of neighbouring steps."""
    pairs = zip(beyond_compute(longer), beyond_compute(shorter), strict=True)
    return inference.median_interval([a / b for a, b in pairs])


@dataclass(frozen=True)
class Accuracy:
    """A method over the seeds.

    Attributes:
        p_differs: Holm's over all methods of the task.
    """

    label: str
    seeds: int
    loss: float
    spread: float
    accuracy: float
    paired: Paired | None  # None: an uncompressed training itself, or a single seed
    p_differs: float

    @property
    def verdict(self) -> str:
        if self.paired is None:
            return "-"
        return "meets the bar" if self.paired.meets_bar else "costs more"


def accuracies(study: Study, task: str) -> list[Accuracy]:
    by_label: dict[str, dict[int, Cell]] = {}
    for cell in study.of("accuracy", task=task):
        by_label.setdefault(cell["label"], {})[cell["seed"]] = cell
    of, tests = losses(study, "accuracy", task=task), {}
    for label in by_label:
        beside = BY_LABEL[label].uncompressed
        if label != beside and (paired := difference(of, label, beside)):
            tests[label] = paired
    differs = dict(zip(tests, inference.holm([t.p_differs for t in tests.values()]), strict=True))
    return [
        Accuracy(
            label,
            len(cells),
            mean(cell["final_loss"] for cell in cells.values()),
            inference.spread([cell["final_loss"] for cell in cells.values()]),
            mean(cell["accuracy"] for cell in cells.values()),
            tests.get(label),
            differs.get(label, 1.0),
        )
        for label, cells in by_label.items()
    ]


def losses(study: Study, part: str, **place: str) -> Losses:
    """Final losses by label and seed."""
    found: Losses = {}
    for cell in study.of(part, **place):
        found.setdefault(cell["label"], {})[cell["seed"]] = cell["final_loss"]
    return found


def difference(of: Losses, label: str, other: str) -> Paired | None:
    """The loss of `label` less that of `other`, paired by seed; None with fewer than two seeds."""
    seeds = sorted(set(of.get(label, {})) & set(of.get(other, {})))
    if len(seeds) < 2:
        return None
    return inference.paired([of[label][s] - of[other][s] for s in seeds])


def interval(paired: Paired | None) -> str:
    """The mean difference and its 95 % interval; "-" if there is none."""
    return f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})" if paired else "-"


def beyond_compute(cell: Cell) -> list[float]:
    """Of each step, the seconds beyond those of forward and backward alone."""
    return [r - c for r, c in zip(cell["reduced"], cell["compute"], strict=True)]


def milliseconds(middle: float, low: float, high: float) -> str:
    """Seconds and their interval."""
    return f"{1e3 * middle:.1f} ms ({1e3 * low:.1f}-{1e3 * high:.1f})"


def times(middle: float, low: float, high: float) -> str:
    """A ratio and its interval."""
    return f"{middle:.2f} x ({low:.2f}-{high:.2f})"


def shorter_goal(what: str, least: float, ratio: tuple[float, float, float]) -> Goal:
    """The goal that a step is so many times shorter beyond compute."""
    return what, f"{least:g} x shorter", times(*ratio), ratio[0] >= least


def section(title: str, about: str, rows: Sequence[Any], columns: Columns) -> str:
    """A part of the report; empty if nothing was measured."""
    return f"## {title}\n\n{about}\n\n{markdown_of(columns, rows)}" if rows else ""


def losses_columns(of: Losses, beside: Callable[[str], str | None]) -> Columns:
    """A row is a label; its loss is compared with that of another one, if there is one."""

    def price(label: str) -> str:
        other = beside(label)
        return interval(difference(of, label, other)) if other else "-"

    return (
        ("method", lambda label: label),
        ("seeds", lambda label: str(len(of[label]))),
        ("loss", lambda label: f"{mean(of[label].values()):.4f}"),
        ("difference (95 %)", price),
    )


def losses_goal(title: str, prices: Mapping[str, Paired | None]) -> Goal:
    """The goal that no final loss is higher than what it is compared with, by label.

    A price that is not known does not meet it.
    """
    good = [label for label, price in prices.items() if price and price.meets_bar]
    others = ", ".join(f"{n}: {p.mean:+.4f}" for n, p in prices.items() if p and n not in good)
    measured = f"{len(good)} of {len(prices)}" + (f" ({others})" if others else "")
    return title, BAR_IN_WORDS, measured, len(good) == len(prices)


def loss_goal(title: str, paired: Paired) -> Goal:
    """The goal that a final loss is not higher than another one."""
    return title, BAR_IN_WORDS, interval(paired), paired.meets_bar


def curves(cells: Sequence[Cell], key: str) -> tuple[list[float], list[float], list[float]]:
    """Mean and mean -+ standard deviation over seeds, step by step: (means, low, high)."""
    columns = list(zip(*(cell[key] for cell in cells), strict=True))
    means = np.array([mean(column) for column in columns])
    reach = np.array([inference.spread(column) for column in columns])
    return means.tolist(), (means - reach).tolist(), (means + reach).tolist()


def slower(study: Study, label: str) -> tuple[float, float, float]:
    """Where compute dominates: a step as a multiple of uncompressed q7x2's, (median, low, high)."""
    by_label = study.by_label("compute-bound")
    base = by_label[UNCOMPRESSED]["seconds"]
    ratios = [a / b for a, b in zip(by_label[label]["seconds"], base, strict=True)]
    return inference.median_interval(ratios)
