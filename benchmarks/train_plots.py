"""The pictures of the training study: loss over steps, loss over seconds, bytes over steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks import train


def draw(path: Path, cells: list[dict[str, Any]], baseline: str) -> None:
    """Writes a PNG with a row for each rate; of several seeds the first."""
    rates = list(dict.fromkeys(c["rate"] for c in cells))
    labels = list(dict.fromkeys(c["label"] for c in cells))
    colours = dict(zip(labels, plt.cm.tab20.colors, strict=False))
    figure, axes = plt.subplots(
        len(rates), 3, figsize=(16, 4.2 * len(rates) + 0.6), squeeze=False, layout="tight"
    )
    for row, rate in zip(axes, rates, strict=True):
        for cell in cells:
            if cell["rate"] != rate or cell["seed"] != 0:
                continue
            style = {
                "color": colours[cell["label"]],
                "label": cell["label"],
                "linewidth": 2.2 if cell["label"] == baseline else 1.3,
                "linestyle": "--" if "Gloo" in cell["label"] else "-",
            }
            losses = train.smooth([s["loss"] for s in cell["steps"]])
            row[0].plot(range(1, len(losses) + 1), losses, **style)
            row[1].plot([s["elapsed"] for s in cell["steps"]], losses, **style)
            sent = list(itertools.accumulate(s["bytes"] for s in cell["steps"]))
            row[2].plot(range(1, len(sent) + 1), [each / 1e6 for each in sent], **style)
        for axis, x, y in zip(
            row,
            ("step", "seconds", "step"),
            ("loss, nats a byte", "loss, nats a byte", "MB sent by a host"),
            strict=True,
        ):
            axis.set_xlabel(x)
            axis.set_ylabel(y)
            axis.set_title(f"4 hosts x {rate}", fontsize=10)
            axis.grid(alpha=0.25)
        row[1].set_xscale("log")
        row[2].set_yscale("log")
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
