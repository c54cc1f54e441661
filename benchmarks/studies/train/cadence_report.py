"""The report's part on cadence: time to DDP's loss, bytes, utilisation; losses over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.harness import inference
from benchmarks.studies.train import figures
from benchmarks.studies.train.cadence import CADENCE_METHODS, DILOCO, SPARSE, STREAMING
from benchmarks.studies.train.figures import Goal
from benchmarks.studies.train.methods import BASELINE
from benchmarks.studies.train.study import RANKS, RECIPES, Study
from tests.lab.topology import bits_per_second

_ACCURACY = "cadence-accuracy"
_TASKS = {_ACCURACY: "the GPT", "cadence-digits": "the CNN on digits"}
_SLOW = "20mbit"
_FEWER_BYTES, _UTILISATION, _SOONER = 100.0, 0.95, 30.0  # what is to be reached


def networks(study: Study) -> list[tuple[int, str]]:
    """How many hosts, and the rate of their links: the slowest first."""
    known = {(cell["hosts"], cell["rate"]) for cell in study.of("cadence")}
    return sorted(known, key=lambda network: (network[0], bits_per_second(network[1])))


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
    cells = study.by_label("cadence", hosts=RANKS, rate=_SLOW)
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
        ours = [m.label for m in CADENCE_METHODS if m.peer is None and m.label in cells]
        times = {label: sooner(cells[label], cells[BASELINE]) or 0.0 for label in ours}
        best = max(times, key=lambda label: times[label])
        yield (
            f"time to the baseline's final loss, {_SLOW}: {best}",
            f"{_SOONER:g} x sooner",
            f"{times[best]:.1f} x",
            times[best] >= _SOONER,
        )
    if paired := figures.difference(figures.losses(study, _ACCURACY), SPARSE, DILOCO):
        yield figures.loss_goal(f"final loss of {SPARSE} against DiLoCo in fp32", paired)


def sections(study: Study) -> list[str]:
    return [_speed(study), *(_losses(study, part) for part in _TASKS)]


def _speed(study: Study) -> str:
    cells = [
        cell
        for hosts, rate in networks(study)
        for cell in study.of("cadence", hosts=hosts, rate=rate)
    ]
    if not cells:
        return ""

    def times(cell: dict[str, Any]) -> str:
        beside = study.by_label("cadence", hosts=cell["hosts"], rate=cell["rate"])
        base = beside.get(BASELINE)
        if base is None:
            return "-"
        return f"{ratio:.1f} x" if (ratio := sooner(cell, base)) else "never"

    recipe = RECIPES["cadence"]
    return figures.section(
        "Cadence",
        f"A GPT of {study.of('cadence')[0]['parameters']:,} parameters, {recipe['batch']} windows "
        f"per rank and step; outer "
        f"steps every {recipe['interval']} steps. *Sooner* compares the times to the held-out loss "
        "with which DDP ends. *Utilisation* is the share of time in which ranks do not wait for "
        "messages. Bytes are those of the counters of a host's NIC. Losses are of the weights that "
        "ranks share.",
        cells,
        (
            ("network", lambda cell: f"{cell['hosts']} hosts, {cell['rate']}"),
            ("method", lambda cell: cell["label"]),
            ("steps", lambda cell: f"{cell['steps']}"),
            ("time", lambda cell: f"{cell['seconds'][-1]:.1f} s"),
            ("sooner", times),
            (
                "utilisation",
                lambda cell: f"{utilisation(cell):.1%}" if cell["message_bytes"] else "-",
            ),
            ("bytes per step", lambda cell: f"{bytes_per_step(cell) / 1e3:,.1f} kB"),
            ("loss", lambda cell: f"{cell['held_out'][-1]:.4f}"),
        ),
    )


def _losses(study: Study, part: str) -> str:
    of, recipe = figures.losses(study, part), RECIPES[part]
    return figures.section(
        f"Cadence: losses of {_TASKS[part]}",
        f"{recipe['steps']} steps, outer steps every {recipe['interval']}; the mean held-out loss "
        f"of the last {recipe['last']} evaluations. Differences are from DDP, paired by seed.",
        [method.label for method in CADENCE_METHODS if method.label in of],
        figures.losses_columns(of, lambda label: None if label == BASELINE else BASELINE),
    )
