"""The report's parts on options of hooks, and on trainings that no default was chosen by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean

from benchmarks.harness import inference
from benchmarks.harness.inference import Paired
from benchmarks.harness.report import Columns, markdown_of
from benchmarks.studies.train import figures
from benchmarks.studies.train.figures import (
    Goal,
    Losses,
    difference,
    interval,
    losses,
)
from benchmarks.studies.train.methods import UNCOMPRESSED
from benchmarks.studies.train.study import RECIPES, Study
from benchmarks.studies.train.variants import CONTROLS, EVERY, PRICED, Variant

_LEAST_GAIN = 0.002  # in loss: what an option must give to be worth having


def base_of(label: str) -> str:
    """The same optimizer without compression."""
    return EVERY[label].uncompressed if label in EVERY else UNCOMPRESSED


def against(of: Losses, label: str) -> Paired | None:
    """What a variant costs less what the method costs that it changes, paired by seed.

    Each is beside its own uncompressed training, because another optimizer may end elsewhere.
    None if there are fewer than two seeds, or if it is no variant.
    """
    method = EVERY.get(label)
    if not isinstance(method, Variant):
        return None
    four = [of.get(each, {}) for each in (label, base_of(label), method.of, base_of(method.of))]
    seeds = sorted(set.intersection(*(set(each) for each in four)))
    if len(seeds) < 2:
        return None
    prices = [
        (mine[s] - base[s]) - (its[s] - other[s])
        for mine, base, its, other in [four]
        for s in seeds
    ]
    return inference.paired(prices)


def verdict(against: Paired) -> str:
    """Of a variant against the method that it changes."""
    if against.high < 0:
        return "helps"
    return "does not help" if against.low > -_LEAST_GAIN else "undecided"


def goals(study: Study) -> Iterable[Goal]:
    for change, of in _held_out_losses(study).items():
        prices = {label: _price(of, label) for label in of if label not in PRICED}
        known = {label: price for label, price in prices.items() if price}
        if known:
            title = f"final loss of defaults on {change}, which they were not chosen by"
            yield figures.losses_goal(title, known)


def sections(study: Study) -> list[str]:
    return [_variants(study), _held_out(study), _long(study)]


def _held_out_losses(study: Study) -> dict[str, Losses]:
    """By what is new in a training."""
    changes = dict.fromkeys(cell["change"] for cell in study.of("held-out-study"))
    return {change: losses(study, "held-out-study", change=change) for change in changes}


def _variants(study: Study) -> str:
    of, recipe = losses(study, "variants"), RECIPES["variants"]

    def from_control(control: str) -> Callable[[str], str]:
        return lambda label: interval(difference(of, label, control)) if label != control else "-"

    def from_own(label: str) -> str:
        base = base_of(label)
        return interval(_price(of, label)) if base not in CONTROLS else "the same"

    def changes(label: str) -> str:
        method = EVERY.get(label)
        return method.of if isinstance(method, Variant) else "-"

    text = figures.section(
        "Options of hooks, one at a time",
        f"{recipe['steps']} steps of the GPT of the part accuracy; the mean held-out loss of the "
        f"last {recipe['last']} evaluations. Differences are paired by seed, with 95 % "
        f"intervals: from uncompressed training with the task's AdamW (β₂ = 0.95), from the "
        "control with β₂ = 0.999, and from the same optimizer without compression where that is "
        "another one. The last difference is that of two prices: the price of the method less that "
        "of the method whose option it changes, each beside its own optimizer. An option helps "
        "if this interval is below 0. It does not help if the interval is above "
        f"{-_LEAST_GAIN:g}, which is the least gain that is worth an option.",
        list(of),
        (
            *figures.losses_columns(of, lambda _: None)[:-1],
            ("from β₂ 0.95", from_control(CONTROLS[0])),
            ("from β₂ 0.999", from_control(CONTROLS[1])),
            ("from its own optimizer", from_own),
            ("changes", changes),
            ("price beside that", lambda label: interval(against(of, label))),
            ("", lambda label: verdict(gain) if (gain := against(of, label)) else "-"),
        ),
    )
    return text and text + "\n"


def _price(of: Losses, label: str) -> Paired | None:
    """The loss of a method less that of its own optimizer without compression."""
    return None if label in CONTROLS else difference(of, label, base_of(label))


def _long(study: Study) -> str:
    of = losses(study, "long")

    def price(label: str) -> str:
        """An interval; of a single seed the difference alone."""
        if label in CONTROLS:
            return "-"
        beside = of.get(base_of(label), {})
        both = [loss - beside[seed] for seed, loss in of[label].items() if seed in beside]
        paired = difference(of, label, base_of(label))
        return interval(paired) if paired or not both else f"{both[0]:+.4f}"

    return figures.section(
        "A long training",
        f"{RECIPES['long']['steps']} steps of the GPT of the part accuracy. Differences are from "
        "uncompressed training with the same optimizer, paired by seed; an interval needs two "
        "seeds.",
        list(of),
        (*figures.losses_columns(of, lambda _: None)[:-1], ("difference (95 %)", price)),
    )


def held_out(study: Study) -> str:
    """The differences of the part "held-out-study", one row for each method."""
    of = _held_out_losses(study)
    rows = [
        label
        for label in dict.fromkeys(label for each in of.values() for label in each)
        if label not in CONTROLS and all(label in each for each in of.values())
    ]

    def price(change: str) -> Callable[[str], str]:
        return lambda label: interval(_price(of[change], label))

    columns: Columns = (
        ("method", lambda label: label),
        ("seeds", lambda label: ", ".join(str(len(each[label])) for each in of.values())),
        *((change, price(change)) for change in of),
    )
    return markdown_of(columns, rows)


def _held_out(study: Study) -> str:
    of, recipes = _held_out_losses(study), RECIPES["held-out-study"]
    size, schedule = recipes["another size"], recipes["another schedule"]
    return figures.section(
        "Trainings that no default was chosen by",
        "Fixed before the defaults were chosen. Another text: the C++ headers of PyTorch. Another "
        f"size: {size['layers']} layers, {size['dim']} wide. Another schedule: "
        f"{schedule['warmup']} steps of warm-up, then a constant learning rate that falls to 0 in "
        "a straight line over the last 30 % of the steps. Differences are from uncompressed "
        "training with the same optimizer, paired by seed, with 95 % intervals.",
        [(change, label) for change in of for label in of[change]],
        (
            ("what is new", lambda row: row[0]),
            ("method", lambda row: row[1]),
            ("seeds", lambda row: str(len(of[row[0]][row[1]]))),
            ("loss", lambda row: f"{mean(of[row[0]][row[1]].values()):.4f}"),
            ("difference (95 %)", lambda row: interval(_price(of[row[0]], row[1]))),
        ),
    )
