"""The picture of a run: time over size for each collective, with the ratios written in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from q7x2._core.palette import BLUE, GREY, VERMILION, line_style

from benchmarks.harness import report, summary

_COLUMNS = 3
_COLOURS: dict[bool | str, str] = {
    True: BLUE,
    False: VERMILION,
    report.UNDECIDED: GREY,
}


def draw(path: Path, title: str, caption: str, cells: list[dict[str, Any]]) -> None:
    """Writes a PNG with one panel for each collective and number of ranks, both axes logarithmic.

    Lines are medians, bands reach from the 10th to the 90th percentile.
    """
    panels = report.panels(cells)
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.2 * columns, 3.8 * rows + 0.7), squeeze=False, layout="tight"
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, ((op, ranks), panel) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, f"{op}, {ranks} ranks", panel)
    axes.flat[0].legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=13)
    first, *others = cells[0]["backends"]
    if others:
        caption = f"numbers: {first} is so many times faster than {others[0]}\n{caption}"
    figure.supxlabel(caption, fontsize=7, color="0.45")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _panel(axis: Axes, title: str, cells: list[dict[str, Any]]) -> None:
    sizes = [cell["size"] for cell in cells]
    names = list(cells[0]["backends"])
    for index, name in enumerate(names):
        figures = [cell["backends"][name] for cell in cells]
        medians = [f["median"] for f in figures]
        (drawn,) = axis.plot(sizes, medians, marker="o", ms=4, label=name, **line_style(index))
        axis.fill_between(
            sizes,
            [f["p10"] for f in figures],
            [f["p90"] for f in figures],
            color=drawn.get_color(),
            alpha=0.15,
            linewidth=0,
        )
    if len(names) > 1:
        for cell in cells:
            axis.annotate(
                f"{summary.ratio(cell, names[0], names[1]):.3g}x",
                (cell["size"], cell["backends"][names[0]]["median"]),
                textcoords="offset points",
                xytext=(0, -13),
                ha="center",
                fontsize=8,
            )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("size")
    axis.set_ylabel("time per operation")
    axis.set_xticks(sizes, [report.size(s) for s in sizes], rotation=30, fontsize=8)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: report.duration(seconds)))
    axis.margins(y=0.15)
    axis.grid(alpha=0.25)


def draw_goals(rows: list[dict[str, Any]], path: Path) -> None:
    """What was reached of each figure, as a share of what was to be reached.

    Args:
        rows: of `bars`; those that were not measured are left out.
    """
    shown = [row for row in rows if "ratio" in row][::-1]
    names = [row["bar"]["name"] for row in shown]
    shares = [_share(row) for row in shown]
    figure, axis = plt.subplots(figsize=(8, 0.28 * len(shown) + 1.2), layout="constrained")
    colours = [_COLOURS[row["reached"]] for row in shown]
    axis.barh(names, shares, color=colours, height=0.7)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10, 20], labels=["0.5", "1", "2", "5", "10", "20"])
    axis.minorticks_off()
    axis.set_xlabel("reached / to be reached")
    for name, row, share in zip(names, shown, shares, strict=True):
        axis.annotate(
            f" {row['ratio']:.2f}x",
            (share, name),
            va="center",
            fontsize=8,
        )
    axis.margins(x=0.15, y=0.01)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _share(row: dict[str, Any]) -> float:
    slack = row["bar"]["slack"]
    if slack is not None:
        return float((row["against_time"] + slack) / row["time"])
    return float(row["ratio"] / row["bar"]["ratio"])
