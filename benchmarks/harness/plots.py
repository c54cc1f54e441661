"""The picture of `bars`: what was reached of each figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from q7x2._core.palette import BLUE, GREY, VERMILION

from benchmarks.harness import report

_COLOURS: dict[bool | str, str] = {
    True: BLUE,
    False: VERMILION,
    report.UNDECIDED: GREY,
}


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
    bars = axis.barh(names, shares, color=colours, height=0.7)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10, 20], labels=["0.5", "1", "2", "5", "10", "20"])
    axis.minorticks_off()
    axis.set_xlabel("reached / to be reached")
    axis.bar_label(bars, [f" {row['ratio']:.2f}x" for row in shown], fontsize=8)
    axis.margins(x=0.15, y=0.01)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _share(row: dict[str, Any]) -> float:
    slack = row["bar"]["slack"]
    if slack is not None:
        return float((row["against_time"] + slack) / row["time"])
    return float(row["ratio"] / row["bar"]["ratio"])
