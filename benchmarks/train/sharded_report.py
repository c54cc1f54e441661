"""The report's part on FSDP2: steps and bytes beside Gloo's, losses over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median
from typing import Any

from benchmarks.report import duration
from benchmarks.train import figures, inference
from benchmarks.train.sharded_methods import COMPRESSED, FSDP_GLOO, FSDP_Q7X2
from benchmarks.train.study import RECIPES, Study

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
Goal = tuple[str, str, str, bool]
_Interval = tuple[float, float, float]

_SHORTER, _BYTES = 3.5, 0.25  # what the compressed steps must reach
_RATES = ("100mbit", "1gbit")


def _rates(study: Study) -> list[str]:
    return list(dict.fromkeys(cell["rate"] for cell in study.of("fsdp")))


def _by_label(study: Study, rate: str) -> dict[str, dict[str, Any]]:
    return {cell["label"]: cell for cell in study.of("fsdp", rate=rate)}


def _beyond(cell: dict[str, Any]) -> list[float]:
    return [r - c for r, c in zip(cell["reduced"], cell["compute"], strict=True)]


def _shorter(study: Study, rate: str, label: str) -> _Interval:
    """How many times longer FSDP2's step on Gloo is beyond compute, of neighbouring steps."""
    cells = _by_label(study, rate)
    pairs = zip(_beyond(cells[FSDP_GLOO]), _beyond(cells[label]), strict=True)
    return inference.median_interval([a / b for a, b in pairs])


def _differences(study: Study) -> dict[str, tuple[float, inference.Paired]]:
    """Of each method: the mean final loss, and how it differs from uncompressed FSDP2's."""
    losses: dict[str, dict[int, float]] = {}
    for cell in study.of("fsdp-accuracy"):
        losses.setdefault(cell["label"], {})[cell["seed"]] = cell["final_loss"]
    base = losses.get(FSDP_Q7X2, {})
    margin = figures.MARGIN * inference.spread(list(base.values()))
    results = {}
    for label, own in losses.items():
        seeds = sorted(set(own) & set(base))
        if len(seeds) > 1:
            paired = inference.paired([own[s] - base[s] for s in seeds], margin)
            results[label] = (mean(own.values()), paired)
    return results


def goals(study: Study) -> Iterable[Goal]:
    for rate in _rates(study):
        if rate not in _RATES:
            continue
        ratio, low, high = _shorter(study, rate, COMPRESSED)
        yield (
            f"FSDP2, {COMPRESSED}: beyond compute against FSDP2 bf16 on Gloo, {rate}",
            f"{_SHORTER:g} x shorter",
            f"{ratio:.2f} x ({low:.2f}-{high:.2f})",
            ratio >= _SHORTER,
        )
        cells = _by_label(study, rate)
        for base in (FSDP_GLOO, FSDP_Q7X2):
            share = cells[COMPRESSED]["bytes"] / cells[base]["bytes"]
            yield (
                f"FSDP2, {COMPRESSED}: bytes against {base}, {rate}",
                f"{_BYTES:g} x at most",
                f"{share:.3f} x",
                share <= _BYTES,
            )
    if COMPRESSED in (results := _differences(study)):
        _, paired = results[COMPRESSED]
        yield (
            f"final loss of FSDP2, {COMPRESSED}",
            "within seed noise",
            f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})",
            paired.p_not_worse < 0.05,
        )


def section(study: Study, table: Table) -> str:
    return _speed(study, table) + _losses(study, table)


def _speed(study: Study, table: Table) -> str:
    rows = []
    for rate in _rates(study):
        for label, cell in _by_label(study, rate).items():
            beyond, low, high = inference.median_interval(_beyond(cell))
            base = _by_label(study, rate)[FSDP_GLOO]
            rows.append(
                (
                    rate,
                    label,
                    duration(median(cell["compute"])),
                    f"{1e3 * beyond:.1f} ms ({1e3 * low:.1f}-{1e3 * high:.1f})",
                    "{:.2f} x ({:.2f}-{:.2f})".format(*_shorter(study, rate, label)),
                    f"{cell['bytes'] / 1e3:,.0f} kB",
                    f"{cell['bytes'] / base['bytes']:.3f} x",
                )
            )
    if not rows:
        return ""
    recipe, parameters = RECIPES["fsdp"], study.of("fsdp")[0]["parameters"]
    return (
        "## FSDP2\n\n"
        f"A GPT of {parameters:,} parameters, one window per rank. Each of {recipe['layers']} "
        "blocks is sharded, and resharded after forward; the root is sharded, and resharded after "
        "backward. Weights are gathered as bf16, and gradients handed to the reduce-scatter as "
        f"bf16. Single steps in turns, {recipe['steps']} of each method; "
        "ratios are of neighbouring steps, bytes those of the counters of a host's NIC per step. "
        "Gloo's reduce-scatter sends as much as an all-reduce.\n\n"
        + table(
            ("rate", "method", "compute", "beyond compute", "shorter", "bytes", "of Gloo's"), rows
        )
    )


def _losses(study: Study, table: Table) -> str:
    rows = [
        (
            label,
            f"{loss:.4f}",
            "-"
            if label == FSDP_Q7X2
            else f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})",
            "-" if label == FSDP_Q7X2 else f"{paired.p_not_worse:.3f}",
        )
        for label, (loss, paired) in _differences(study).items()
    ]
    if not rows:
        return ""
    recipe = RECIPES["fsdp-accuracy"]
    seeds = len({cell["seed"] for cell in study.of("fsdp-accuracy")})
    return (
        "## FSDP2: losses\n\n"
        f"{recipe['steps']} steps, {seeds} seeds; the mean held-out loss of the last "
        f"{recipe['last']} evaluations. Differences are from uncompressed FSDP2, paired by seed. p "
        "not worse: as under Accuracy.\n\n"
        + table(("method", "loss", "difference (95 %)", "p not worse"), rows)
    )
