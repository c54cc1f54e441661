"""The demo's picture: the same losses on the left, where the seconds of a step go beside them, and
the losses over slow links on the right, if they were measured.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK, MUTED = "#1b1f24", "#6e7781"
COMPUTE = "#d0d7de"
COLORS = ("#0b7285", "#e8590c")  # the backend under test, the reference


def draw(result: dict[str, Any], path: Path) -> None:
    """`result` is what the demo writes as JSON; the first of its backends is the one under test."""
    style = {"font.size": 10.5, "text.color": INK, "axes.edgecolor": MUTED, "axes.labelcolor": INK}
    style |= {"xtick.color": MUTED, "ytick.color": MUTED, "axes.titlesize": 12}
    style |= {"axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 14}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        slow = result.get("slow_link")
        widths = (1.05, 1, 1) if slow else (1.05, 1)
        figure = Figure(figsize=(5.5 * len(widths), 4.2), dpi=160, layout="constrained")
        curves, bars, *rest = figure.subplots(1, len(widths), width_ratios=widths)
        figure.get_layout_engine().set(wspace=0.06, rect=(0.01, 0.07, 0.98, 0.92))
        _losses(curves, result)
        _steps(bars, result)
        if slow:
            _slow_link(rest[0], slow)
        figure.text(0.015, 0.02, result["caption"], color=MUTED, fontsize=8.5)
        figure.savefig(path)


def _losses(axes: Any, result: dict[str, Any]) -> None:
    (tested, reference), differences = result["backends"], result["differences"]
    # The reference is a wide band under a thin line, so that both are seen where they coincide.
    looks = ({"linewidth": 1.4}, {"linewidth": 6, "alpha": 0.35, "solid_capstyle": "round"})
    for backend, color, look in reversed(
        list(zip((tested, reference), COLORS, looks, strict=True))
    ):
        axes.plot(backend["step"], backend["loss"], color=color, label=backend["name"], **look)
    axes.set_title("The same loss, step by step")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (nats per byte)")
    axes.margins(x=0.02)
    axes.grid(axis="y", color="#eaeef2")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="upper right", fontsize=11)
    axes.annotate(
        f"largest relative difference: {differences['loss']:.0e}",
        (0.98, 0.7),
        xycoords="axes fraction",
        ha="right",
        color=MUTED,
    )


def _slow_link(axes: Any, slow: dict[str, Any]) -> None:
    for curve, color in zip(slow["curves"], COLORS, strict=True):
        axes.plot(curve["seconds"], curve["loss"], color=color, linewidth=1.8)
        end = (curve["seconds"][-1], curve["loss"][-1])
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(curve["name"], end, color=color, fontweight="bold", **place)
    title = f"Over links of {slow['rate']}"
    if slow["sooner"]:
        title += f": {slow['sooner']:.1f} times sooner"
    axes.set_title(title)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("training loss (nats per byte)")
    axes.margins(x=0.2)
    axes.grid(axis="y", color="#eaeef2")


def _steps(axes: Any, result: dict[str, Any]) -> None:
    backends = result["backends"]
    for row, (backend, color) in enumerate(zip(backends, COLORS, strict=True)):
        total, communication = 1e3 * backend["seconds"], 1e3 * max(0, backend["communication"])
        compute = total - communication
        axes.barh(row, compute, color=COMPUTE, height=0.55)
        axes.barh(row, communication, left=compute, color=color, height=0.55)
        axes.text(compute / 2, row, f"{compute:.0f} ms", ha="center", va="center")
        note = f" {total:.0f} ms, of it {communication:.0f} ms communication"
        axes.text(
            0, row - 0.36, note.strip(), ha="left", va="center", color=color, fontweight="bold"
        )
    axes.set_title("Where a step's time goes")
    axes.set_yticks(range(len(backends)), [b["name"] for b in backends], color=INK, fontsize=12)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(backends) - 0.6, -0.6)
    axes.set_xlabel("milliseconds per step, median (grey: compute alone)")
    axes.grid(axis="x", color="#eaeef2")
    axes.set_axisbelow(True)
