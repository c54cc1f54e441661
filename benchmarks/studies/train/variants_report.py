"""The report's parts on options of hooks, and on trainings that no default was chosen by."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from benchmarks.harness import inference
from benchmarks.harness.inference import Paired
from benchmarks.harness.report import markdown
from benchmarks.studies.train import figures
from benchmarks.studies.train.figures import (
    BAR_IN_WORDS,
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
    for change in _changes(study):
        of = losses(study, "held-out-study", change=change)
        prices = {label: difference(of, label, base_of(label)) for label in of}
        known = {
            label: p
            for label, p in prices.items()
            if p and label not in CONTROLS and label not in PRICED
        }
        if not known:
            continue
        good = [label for label, price in known.items() if price.meets_bar]
        others = ", ".join(f"{n}: {p.mean:+.4f}" for n, p in known.items() if n not in good)
        yield (
            f"final loss of defaults on {change}, which they were not chosen by",
            BAR_IN_WORDS,
            f"{len(good)} of {len(known)}" + (f" ({others})" if others else ""),
            len(good) == len(known),
        )


def sections(study: Study) -> list[str]:
    return [_variants(study), _held_out(study), _long(study)]


def _changes(study: Study) -> list[str]:
    return list(dict.fromkeys(cell["change"] for cell in study.of("held-out-study")))


def _variants(study: Study) -> str:
    of = losses(study, "variants")
    rows = []
    for label, by_seed in of.items():
        method = EVERY.get(label)
        changed = method.of if isinstance(method, Variant) else "-"
        price = difference(of, label, base_of(label)) if label not in CONTROLS else None
        gain = against(of, label)
        rows.append(
            (
                label,
                str(len(by_seed)),
                f"{mean(by_seed.values()):.4f}",
                *(interval(difference(of, label, c)) if label != c else "-" for c in CONTROLS),
                interval(price) if base_of(label) not in CONTROLS else "the same",
                changed,
                interval(gain),
                verdict(gain) if gain else "-",
            )
        )
    head = (
        "method",
        "seeds",
        "loss",
        "from β₂ 0.95",
        "from β₂ 0.999",
        "from its own optimizer",
        "changes",
        "price beside that",
        "",
    )
    recipe = RECIPES["variants"]
    text = figures.section(
        "Options of hooks, one at a time",
        head,
        rows,
        f"{recipe['steps']} steps of the GPT of the part accuracy; the mean held-out loss of the "
        f"last {recipe['last']} evaluations. Differences are paired by seed, with 95 % "
        f"intervals: from uncompressed training with the task's AdamW (β₂ = 0.95), from the "
        "control with β₂ = 0.999, and from the same optimizer without compression where that is "
        "another one. The last difference is that of two prices: the price of the method less that "
        "of the method whose option it changes, each beside its own optimizer. An option helps "
        "if this interval is below 0. It does not help if the interval is above "
        f"{-_LEAST_GAIN:g}, which is the least gain that is worth an option.",
    )
    return text and text + "\n"


def _long(study: Study) -> str:
    of = losses(study, "long")
    rows = []
    for label, by_seed in of.items():
        beside = of.get(base_of(label), {})
        both = [by_seed[seed] - beside[seed] for seed in by_seed if seed in beside]
        price = "-"
        if label not in CONTROLS and both:
            paired = difference(of, label, base_of(label))
            price = interval(paired) if paired else f"{both[0]:+.4f}"
        rows.append((label, str(len(by_seed)), f"{mean(by_seed.values()):.4f}", price))
    return figures.section(
        "A long training",
        ("method", "seeds", "loss", "difference (95 %)"),
        rows,
        f"{RECIPES['long']['steps']} steps of the GPT of the part accuracy. Differences are from "
        "uncompressed training with the same optimizer, paired by seed; an interval needs two "
        "seeds.",
    )


def held_out(study: Study) -> str:
    """The differences of the part "held-out-study", one row for each method."""
    changes = _changes(study)
    by_change = {change: losses(study, "held-out-study", change=change) for change in changes}
    rows = []
    for label in dict.fromkeys(label for of in by_change.values() for label in of):
        measured = [of.get(label, {}) for of in by_change.values()]
        if label not in CONTROLS and all(measured):
            prices = (difference(of, label, base_of(label)) for of in by_change.values())
            seeds = ", ".join(str(len(each)) for each in measured)
            rows.append((label, seeds, *map(interval, prices)))
    return markdown(("method", "seeds", *changes), rows)


def _held_out(study: Study) -> str:
    rows = []
    for change in _changes(study):
        of = losses(study, "held-out-study", change=change)
        for label, by_seed in of.items():
            price = interval(difference(of, label, base_of(label)))
            if label in CONTROLS:
                price = "-"
            rows.append((change, label, str(len(by_seed)), f"{mean(by_seed.values()):.4f}", price))
    recipes = RECIPES["held-out-study"]
    size, schedule = recipes["another size"], recipes["another schedule"]
    return figures.section(
        "Trainings that no default was chosen by",
        ("what is new", "method", "seeds", "loss", "difference (95 %)"),
        rows,
        "Fixed before the defaults were chosen. Another text: the C++ headers of PyTorch. Another "
        f"size: {size['layers']} layers, {size['dim']} wide. Another schedule: "
        f"{schedule['warmup']} steps of warm-up, then a constant learning rate that falls to 0 in "
        "a straight line over the last 30 % of the steps. Differences are from uncompressed "
        "training with the same optimizer, paired by seed, with 95 % intervals.",
    )
