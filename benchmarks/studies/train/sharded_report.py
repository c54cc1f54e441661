"""The report's part on FSDP2: steps and bytes beside Gloo's, losses over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from benchmarks.harness import inference
from benchmarks.harness.report import duration
from benchmarks.studies.train import figures
from benchmarks.studies.train.figures import Goal
from benchmarks.studies.train.sharded import COMPRESSED, FSDP_GLOO, FSDP_Q7X2
from benchmarks.studies.train.study import RECIPES, Study

_Interval = tuple[float, float, float]

_ACCURACY = "fsdp-accuracy"
_SHORTER, _BYTES = 3.5, 0.25  # what the compressed steps must reach
_RATES = ("100mbit", "1gbit")


def _rates(study: Study) -> list[str]:
    return list(dict.fromkeys(cell["rate"] for cell in study.of("fsdp")))


def _shorter(study: Study, rate: str, label: str) -> _Interval:
    """How many times longer FSDP2's step on Gloo is beyond compute, of neighbouring steps."""
    cells = study.by_label("fsdp", rate=rate)
    return figures.ratio_of_steps(cells[FSDP_GLOO], cells[label])


def goals(study: Study) -> Iterable[Goal]:
    for rate in _rates(study):
        if rate not in _RATES:
            continue
        what = f"FSDP2, {COMPRESSED}: beyond compute against FSDP2 bf16 on Gloo, {rate}"
        yield figures.shorter_goal(what, _SHORTER, _shorter(study, rate, COMPRESSED))
        cells = study.by_label("fsdp", rate=rate)
        for base in (FSDP_GLOO, FSDP_Q7X2):
            share = cells[COMPRESSED]["bytes"] / cells[base]["bytes"]
            yield (
                f"FSDP2, {COMPRESSED}: bytes against {base}, {rate}",
                f"{_BYTES:g} x at most",
                f"{share:.3f} x",
                share <= _BYTES,
            )
    if paired := figures.difference(figures.losses(study, _ACCURACY), COMPRESSED, FSDP_Q7X2):
        yield figures.loss_goal(f"final loss of FSDP2, {COMPRESSED}", paired)


def sections(study: Study) -> list[str]:
    return [_speed(study), _losses(study)]


def _speed(study: Study) -> str:
    cells = [cell for rate in _rates(study) for cell in study.of("fsdp", rate=rate)]
    if not cells:
        return ""

    def beyond(cell: dict[str, Any]) -> str:
        return figures.milliseconds(*inference.median_interval(figures.beyond_compute(cell)))

    def of_gloo(cell: dict[str, Any]) -> str:
        gloo = study.by_label("fsdp", rate=cell["rate"])[FSDP_GLOO]
        return f"{cell['bytes'] / gloo['bytes']:.3f} x"

    recipe = RECIPES["fsdp"]
    return figures.section(
        "FSDP2",
        f"A GPT of {study.of('fsdp')[0]['parameters']:,} parameters, one window per rank. Each of "
        f"{recipe['layers']} "
        "blocks is sharded, and resharded after forward; the root is sharded, and resharded after "
        "backward. Weights are gathered as bf16, and gradients handed to the reduce-scatter as "
        f"bf16. Single steps in turns, {recipe['steps']} of each method; "
        "ratios are of neighbouring steps, bytes those of the counters of a host's NIC per step. "
        "Gloo's reduce-scatter sends as much as an all-reduce. *Nothing sent*: collectives return "
        "at once, so this is the time that FSDP2 takes by itself.",
        cells,
        (
            ("rate", lambda cell: cell["rate"]),
            ("method", lambda cell: cell["label"]),
            ("compute", lambda cell: duration(median(cell["compute"]))),
            ("beyond compute", beyond),
            ("shorter", lambda c: figures.times(*_shorter(study, c["rate"], c["label"]))),
            ("bytes", lambda cell: f"{cell['bytes'] / 1e3:,.0f} kB"),
            ("of Gloo's", of_gloo),
        ),
    )


def _losses(study: Study) -> str:
    of, recipe = figures.losses(study, _ACCURACY), RECIPES[_ACCURACY]
    seeds = len({cell["seed"] for cell in study.of(_ACCURACY)})
    columns = figures.losses_columns(of, lambda each: None if each == FSDP_Q7X2 else FSDP_Q7X2)
    return figures.section(
        "FSDP2: losses",
        f"{recipe['steps']} steps, {seeds} seeds; the mean held-out loss of the last "
        f"{recipe['last']} evaluations. Differences are from uncompressed FSDP2, paired by seed.",
        list(of),
        [column for column in columns if column[0] != "seeds"],
    )
