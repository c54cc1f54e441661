"""The report's part on cadence: time to DDP's loss, bytes, utilisation; losses over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from benchmarks.train import figures, inference
from benchmarks.train.cadence_methods import CADENCE_METHODS, DILOCO, SPARSE, STREAMING
from benchmarks.train.methods import BASELINE
from benchmarks.train.study import RECIPES, Study

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
Goal = tuple[str, str, str, bool]

_SLOW = "20mbit"
_FEWER_BYTES, _UTILISATION, _SOONER = 100.0, 0.95, 30.0  # what is to be reached


def _rates(study: Study) -> list[str]:
    return list(dict.fromkeys(cell["rate"] for cell in study.of("cadence")))


def _by_label(study: Study, rate: str) -> dict[str, dict[str, Any]]:
    return {cell["label"]: cell for cell in study.of("cadence", rate=rate)}


def sooner(cell: dict[str, Any], base: dict[str, Any]) -> float | None:
    """How many times sooner a training reaches the final loss of DDP; None: never."""
    target = base["held_out"][-1]
    reached = inference.first_at_most(cell["seconds"], cell["held_out"], target)
    whole = inference.first_at_most(base["seconds"], base["held_out"], target)
    assert whole is not None
    return None if reached is None else whole / reached


def utilisation(cell: dict[str, Any]) -> float:
    """The share of the time between the first step and the last in which ranks did not wait."""
    return float(cell["compute_seconds"] / (cell["compute_seconds"] + cell["waited_seconds"]))


def bytes_per_step(cell: dict[str, Any]) -> float:
    """That left a host, headers and heartbeats included, without those of evaluations."""
    return float(cell["bytes"][-1] / cell["steps"])


def goals(study: Study) -> Iterable[Goal]:
    cells = _by_label(study, _SLOW)
    if {DILOCO, SPARSE} <= cells.keys():
        fewer = bytes_per_step(cells[DILOCO]) / bytes_per_step(cells[SPARSE])
        yield (
            f"{SPARSE} against DiLoCo in fp32, bytes of a host, {_SLOW}",
            f"{_FEWER_BYTES:g} x fewer",
            f"{fewer:.0f} x",
            fewer >= _FEWER_BYTES,
        )
    if STREAMING in cells:
        share = utilisation(cells[STREAMING])
        goal = f"{_UTILISATION:.0%} at least"
        yield f"utilisation of {STREAMING}, {_SLOW}", goal, f"{share:.1%}", share >= _UTILISATION
    if BASELINE in cells and len(cells) > 1:
        times = {label: sooner(cell, cells[BASELINE]) or 0.0 for label, cell in cells.items()}
        best = max(times, key=lambda label: times[label])
        yield (
            f"time to the baseline's final loss, {_SLOW}: {best}",
            f"{_SOONER:g} x sooner",
            f"{times[best]:.1f} x",
            times[best] >= _SOONER,
        )
    paired = _differences(study, DILOCO).get(SPARSE)
    if paired is not None:
        yield (
            f"final loss of {SPARSE} against DiLoCo in fp32",
            "within seed noise",
            f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})",
            paired.p_not_worse < 0.05,
        )


def section(study: Study, table: Table) -> str:
    return _speed(study, table) + _losses(study, table)


def _speed(study: Study, table: Table) -> str:
    rows = []
    for rate in _rates(study):
        cells = _by_label(study, rate)
        base = cells.get(BASELINE)
        for label, cell in cells.items():
            times = sooner(cell, base) if base else None
            rows.append(
                (
                    rate,
                    label,
                    f"{cell['steps']}",
                    f"{cell['seconds'][-1]:.1f} s",
                    f"{times:.1f} x" if times else "never" if base else "-",
                    f"{utilisation(cell):.1%}" if cell["message_bytes"] else "-",
                    f"{bytes_per_step(cell) / 1e3:,.1f} kB",
                    f"{cell['held_out'][-1]:.4f}",
                )
            )
    if not rows:
        return ""
    recipe, parameters = RECIPES["cadence"], study.of("cadence")[0]["parameters"]
    head = ("rate", "method", "steps", "time", "sooner", "utilisation", "bytes per step", "loss")
    return (
        "## Cadence\n\n"
        f"A GPT of {parameters:,} parameters, {recipe['batch']} windows per rank and step; outer "
        f"steps every {recipe['interval']} steps. *Sooner* compares the times to the held-out loss "
        "with which DDP ends. *Utilisation* is the share of time in which ranks do not wait for "
        "messages. Bytes are those of the counters of a host's NIC. Losses are of the weights that "
        "ranks share.\n\n" + table(head, rows)
    )


def _differences(study: Study, base_label: str) -> dict[str, inference.Paired]:
    """Of each method: how its final loss differs from another method's, paired by seed."""
    losses: dict[str, dict[int, float]] = {}
    for cell in study.of("cadence-accuracy"):
        losses.setdefault(cell["label"], {})[cell["seed"]] = cell["final_loss"]
    base = losses.get(base_label, {})
    if len(base) < 2:
        return {}
    margin = figures.MARGIN * inference.spread(list(base.values()))
    results = {}
    for label, own in losses.items():
        seeds = sorted(own.keys() & base.keys())
        if label != base_label and len(seeds) > 1:
            results[label] = inference.paired([own[s] - base[s] for s in seeds], margin)
    return results


def _losses(study: Study, table: Table) -> str:
    against_ddp = _differences(study, BASELINE)
    rows = []
    for label in (method.label for method in CADENCE_METHODS):
        own = [cell["final_loss"] for cell in study.of("cadence-accuracy", label=label)]
        paired = against_ddp.get(label)
        if own:
            difference = "-"
            if paired is not None:
                difference = f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})"
            rows.append((label, f"{len(own)}", f"{mean(own):.4f}", difference))
    if not rows:
        return ""
    recipe = RECIPES["cadence-accuracy"]
    return (
        "## Cadence: losses\n\n"
        f"{recipe['steps']} steps, outer steps every {recipe['interval']}; the mean held-out loss "
        f"of the last {recipe['last']} evaluations. Differences are from DDP, paired by seed.\n\n"
        + table(("method", "seeds", "loss", "difference (95 %)"), rows)
    )
