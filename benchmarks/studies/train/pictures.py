"""The pictures of the study."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from q7x2._core.palette import BLUE, GREY, LINES, ORANGE, PURPLE, SKY, VERMILION, line_style

from benchmarks.harness import inference
from benchmarks.studies.train import cadence_report, figures
from benchmarks.studies.train.cadence import CADENCE_BY_LABEL
from benchmarks.studies.train.methods import (
    BASELINE,
    METHODS,
    POWERSGD,
    TORCH_POWERSGD,
    UNCOMPRESSED,
)
from benchmarks.studies.train.study import TASKS, Study
from tests.lab.topology import bits_per_second

# Of the headline; few enough to tell apart.
_COLOURS = {
    BASELINE: GREY,
    "PyTorch bf16, Gloo": SKY,
    TORCH_POWERSGD: ORANGE,
    "int8": VERMILION,
    "int4": PURPLE,
    POWERSGD: BLUE,
}
_VERDICTS = {"meets the bar": BLUE, "costs more": VERMILION}
_HEADLINE_RATE = "100mbit"
_SHOWN_DIFFERENCE = 0.06  # on either side
_PHASES = {"encode": 0, "pack": 0, "orthonormalise": 1, "project": 2, "decode": 3, "unpack": 3}


def draw(study: Study, folder: Path) -> list[str]:
    """Writes a picture for each part that has cells; returns the names of the files."""
    drawn = []
    for name, picture in (
        ("train_headline.png", _headline),
        ("train_speed.png", _speed),
        ("train_accuracy.png", _accuracy),
        ("train_overlap.png", _overlap),
        ("train_hook_cpu.png", _hook_cpu),
        ("train_cadence.png", _cadence),
    ):
        figure = picture(study)
        if figure is not None:
            figure.savefig(folder / name, dpi=130)
            plt.close(figure)
            drawn.append(name)
    return drawn


def rates_of(study: Study, part: str) -> list[str]:
    return sorted({cell["rate"] for cell in study.of(part)}, key=bits_per_second)


def style(label: str) -> dict[str, Any]:
    """How the line of a method is drawn."""
    others = [m.label for m in METHODS if m.label not in _COLOURS]
    if label in _COLOURS:
        look = {"color": _COLOURS[label], "linestyle": "--" if "Gloo" in label else "-"}
    else:  # the later dashes
        look = line_style(2 * len(LINES) + others.index(label))
    width = 2.4 if label in (BASELINE, UNCOMPRESSED) else 1.4
    return {"label": label, "linewidth": width, **look}


def _name_lines(figure: Figure) -> None:
    """A legend of all lines, below them."""
    named = {
        label: handle
        for axis in figure.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    place = {"loc": "outside lower center", "ncols": 6}
    figure.legend(list(named.values()), list(named), frameon=False, fontsize=9, **place)


def _finish(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.25)


def _headline(study: Study) -> Figure | None:
    cells = [c for c in study.of("speed", rate=_HEADLINE_RATE) if c["label"] in _COLOURS]
    if not cells:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    by_label = {s.label: s for s in figures.speeds(study, _HEADLINE_RATE)}
    base = next(c for c in cells if c["label"] == BASELINE)
    left.axhline(base["rounds"]["held_out"][-1], color="0.6", linewidth=0.8)
    for cell in cells:
        seconds, losses = figures.elapsed(cell), cell["rounds"]["held_out"]
        (line,) = left.plot(seconds, losses, **style(cell["label"]))
        left.annotate(
            cell["label"],
            (seconds[-1], losses[-1]),
            xytext=(2, -5),
            textcoords="offset points",
            ha="left",
            va="center",
            rotation=-60,
            rotation_mode="anchor",
            color=line.get_color(),
            fontsize=8,
        )
    left.set_xscale("log")
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.margins(x=0.1)
    low, high = left.get_ylim()
    left.set_ylim(low - 0.55 * (high - low), high)  # room for the names
    _finish(left, "The same GPT, four hosts, 100 Mbit/s", "seconds", "held-out loss, nats per byte")
    shown = [s for label in _COLOURS if (s := by_label.get(label)) and s.reached][::-1]
    right.barh(
        [s.label for s in shown],
        [s.reached or 0 for s in shown],
        color=[style(s.label)["color"] for s in shown],
    )
    for s in shown:
        right.annotate(f" {s.reached:.3g} s, {s.sooner:.1f} x", (s.reached, s.label), va="center")
    right.margins(x=0.3)
    _finish(right, "Time to the final loss of DDP over Gloo", "seconds", "")
    return figure


def _speed(study: Study) -> Figure | None:
    rates = rates_of(study, "speed")
    if not rates:
        return None
    figure, axes = plt.subplots(
        len(rates), 3, figsize=(16, 4.2 * len(rates) + 0.6), squeeze=False, layout="constrained"
    )
    for row, rate in zip(axes, rates, strict=True):
        for cell in study.of("speed", rate=rate):
            look, rounds = style(cell["label"]), cell["rounds"]
            steps = [cell["turn"] * (i + 1) for i in range(len(rounds["loss"]))]
            row[0].plot(steps, rounds["held_out"], **look)
            row[1].plot(figures.elapsed(cell), rounds["held_out"], **look)
            sent = itertools.accumulate(each * cell["turn"] / 1e6 for each in rounds["bytes"])
            row[2].plot(steps, list(sent), **look)
        title = f"4 hosts x {rate}"
        _finish(row[0], title, "step", "held-out loss, nats per byte")
        _finish(row[1], title, "seconds", "held-out loss, nats per byte")
        _finish(row[2], title, "step", "MB sent per host")
        row[1].set_xscale("log")
        row[2].set_yscale("log")
    _name_lines(figure)
    return figure


def _accuracy(study: Study) -> Figure | None:
    tasks = [task for task in TASKS if study.of("accuracy", task=task)]
    if not tasks:
        return None
    figure, axes = plt.subplots(
        len(tasks), 2, figsize=(14, 4.6 * len(tasks)), squeeze=False, layout="constrained"
    )
    for row, task in zip(axes, tasks, strict=True):
        cells = study.of("accuracy", task=task)
        for label in dict.fromkeys(cell["label"] for cell in cells):
            mine = [cell for cell in cells if cell["label"] == label]
            means, low, high = figures.curves(mine, "held_out")
            steps = [mine[0]["every"] * (i + 1) for i in range(len(means))]
            row[0].plot(steps, means, **style(label))
            row[0].fill_between(steps, low, high, color=style(label)["color"], alpha=0.12, lw=0)
        row[0].set_yscale("log")
        _finish(row[0], f"{task}: mean and spread over seeds", "step", "held-out loss")
        shown = [r for r in figures.accuracies(study, task) if r.paired][::-1]
        edge = _SHOWN_DIFFERENCE
        for r in shown:
            assert r.paired is not None
            colour = _VERDICTS.get(r.verdict, GREY)
            if r.paired.mean > edge:
                row[1].plot(edge, r.label, ">", color=colour)
                note = (f"{r.paired.mean:+.3g}  ", (edge, r.label))
                row[1].annotate(*note, ha="right", va="center", fontsize=8)
                continue
            error = [[r.paired.mean - r.paired.low], [r.paired.high - r.paired.mean]]
            row[1].errorbar(r.paired.mean, r.label, xerr=error, fmt="o", color=colour, capsize=3)
        row[1].axvspan(-edge, inference.BAR, color=BLUE, alpha=0.12, lw=0)
        row[1].axvline(0, color="0.5", linewidth=0.8)
        row[1].set_xlim(-edge, 1.05 * edge)
        _finish(
            row[1],
            "difference from uncompressed, 95 % interval; shaded: meets the bar",
            "held-out loss at the end, less is better",
            "",
        )
    _name_lines(figure)
    return figure


def _overlap(study: Study) -> Figure | None:
    cells = [c for c in study.of("overlap") if c["label"] in ("PowerSGD 4", "int8")]
    if not cells:
        return None
    figure, axes = plt.subplots(
        len(cells), 1, figsize=(12, 2.6 * len(cells)), squeeze=False, layout="constrained"
    )
    for axis, cell in zip(axes[:, 0], cells, strict=True):
        _timeline(axis, cell)
    return figure


def _timeline(axis: Axes, cell: dict[str, Any]) -> None:
    """One step of rank 0: backward, the hook's thread, and the collectives of each lane."""
    line = cell["timeline"]
    lanes = sorted({lane for _, name, lane, *_ in line["spans"] if name == "collective"})
    # Collectives of a lane overlap: each bucket has a row of its own in it.
    buckets = 1 + max(bucket for bucket, *_ in line["spans"])
    axis.broken_barh([(0, 1e3 * line["backward"])], (1.1, 0.8), color="0.75")
    named: set[str] = set()
    for bucket, name, lane, begin, end in line["spans"]:
        span = [(1e3 * begin, 1e3 * (end - begin))]
        if name == "collective":
            height = 0.9 / buckets
            at = -1.0 - lanes.index(lane) + 0.9 - (bucket + 1) * height
            axis.broken_barh(span, (at, 0.9 * height), color=LINES[bucket % len(LINES)])
        else:
            colour = LINES[_PHASES.get(name, 4)]
            label = None if name in named else name
            axis.broken_barh(span, (0.1, 0.8), color=colour, label=label)
            named.add(name)
    rows = ["backward", "hook's thread", *(f"lane {lane}" for lane in lanes)]
    axis.set_yticks([1.5, 0.5, *(-0.55 - i for i in range(len(lanes)))], rows)
    axis.axvline(1e3 * line["backward"], color="0.3", linewidth=0.8)
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    share = cell["hidden_seconds"] / cell["ideal_seconds"] if cell["ideal_seconds"] else 1.0
    title = (
        f"{cell['label']}, {cell['rate']}: one step of rank 0, collectives coloured by bucket; "
        f"{share:.0%} of what can be hidden is hidden"
    )
    _finish(axis, title, "ms from the start of backward", "")


def _hook_cpu(study: Study) -> Figure | None:
    cells = study.of("hook-cpu")
    if not cells:
        return None
    figure, axis = plt.subplots(figsize=(9, 0.45 * len(cells) + 1.4), layout="constrained")
    named: set[str] = set()
    for cell in cells[::-1]:
        left = 0.0
        for phase, seconds in cell["cpu_seconds"].items():
            axis.barh(
                cell["label"],
                1e3 * seconds,
                left=left,
                color=LINES[_PHASES.get(phase, 4)],
                label=None if phase in named else phase,
            )
            named.add(phase)
            left += 1e3 * seconds
    axis.legend(frameon=False, fontsize=8)
    _finish(axis, "The hook's thread, 25 million parameters", "CPU milliseconds per step", "")
    return figure


def _cadence(study: Study) -> Figure | None:
    networks = cadence_report.networks(study)
    if not networks:
        return None
    figure, axes = plt.subplots(
        len(networks), 3, figsize=(16, 4.2 * len(networks)), squeeze=False, layout="constrained"
    )
    for row, (hosts, rate) in zip(axes, networks, strict=True):
        for cell in study.of("cadence", hosts=hosts, rate=rate):
            label, losses = cell["label"], cell["held_out"]
            look = {"label": label, **line_style(list(CADENCE_BY_LABEL).index(label))}
            steps = [cell["every"] * i for i in range(len(losses))]
            row[0].plot(steps[1:], losses[1:], **look)
            row[1].plot(cell["seconds"][1:], losses[1:], **look)
            row[2].plot([each / 1e6 for each in cell["bytes"][1:]], losses[1:], **look)
        for axis, x in zip(row, ("step", "seconds", "MB sent per host"), strict=True):
            _finish(axis, f"{hosts} hosts x {rate}", x, "held-out loss, nats per byte")
        for axis in row[:2]:
            axis.set_xscale("log")
        row[2].set_xscale("symlog", linthresh=0.1)
    _name_lines(figure)
    return figure
