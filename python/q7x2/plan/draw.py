"""``q7x2 plan draw``: a picture of the Plans of a group.

Ranks stand side by side and time runs down. A message takes one step and starts as soon as the ops
it waits for are complete; copies and folds take none. So the picture shows what depends on what,
not how long it takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q7x2._core.palette import LINES
from q7x2.fabric.arguments import add_schedule_arguments, fabric_of_file, root_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plan = dict[str, Any]


def add_parser(commands: Any) -> None:
    """Add ``draw`` to the subcommands of ``q7x2 plan``."""
    parser = commands.add_parser(
        "draw",
        help="draw an algorithm's messages",
        epilog="for example: q7x2 plan draw --algorithm ccube --ranks 8 --out ccube.svg",
    )
    add_schedule_arguments(parser, ranks="default: those of the fabric, or 8")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".svg, .png or .pdf"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from q7x2._core.extension import load

    try:
        import matplotlib
    except ImportError:
        print("q7x2 plan draw needs matplotlib: pip install 'q7x2[demo]'", file=sys.stderr)
        return 1
    except ValueError as error:  # such as a backend in MPLBACKEND that does not exist
        print(f"q7x2 plan draw: matplotlib refuses its settings: {error}", file=sys.stderr)
        return 1
    try:
        fabric = fabric_of_file(options)
        ranks = options.ranks if options.ranks or fabric else 8
        root = root_of(options)
        plans = load().make_plans(options.op, options.algorithm, ranks, root, fabric)
        # Text stays text, and the same Plans give the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "q7x2"}):
            metadata = {"Date": None} if options.out.suffix == ".svg" else None
            draw(plans, options.op).savefig(options.out, metadata=metadata)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"q7x2 plan draw: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Message:
    """A message on its way from ``begin`` to ``end``, in steps."""

    source: int
    destination: int
    part: int
    begin: int
    end: int


@dataclass
class Schedule:
    """When everything happens at the earliest."""

    messages: list[Message] = field(default_factory=list)
    folds: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Rank, time, part, and whether the result is final."""

    @property
    def steps(self) -> int:
        return max((message.end for message in self.messages), default=0)


def schedule(plans: Sequence[Plan]) -> Schedule:
    """Run the Plans of a group, by rank, with one step for each message."""
    result = Schedule()
    finished: list[list[int | None]] = [[None] * len(plan["ops"]) for plan in plans]
    sends: dict[tuple[int, int, int], int] = {}  # when a message (from, to, id) left
    waiting = [(rank, op) for rank, plan in enumerate(plans) for op in range(len(plan["ops"]))]
    while waiting:
        still = []
        for rank, index in waiting:
            op = plans[rank]["ops"][index]
            times = [finished[rank][before] for before in op["after"]]
            key = (op["peer"], rank, op["message"])
            if None in times or (op["kind"] == "recv" and key not in sends):
                still.append((rank, index))
                continue
            now = max((time for time in times if time is not None), default=0)
            if op["kind"] == "send":
                sends[rank, op["peer"], op["message"]] = now
            elif op["kind"] == "recv":
                begin, now = sends[key], max(now, sends[key] + 1)
                result.messages.append(Message(op["peer"], rank, op["part"], begin, now))
            elif op["kind"] == "reduce":
                result.folds.append((rank, now, op["part"], op["is_final"]))
            finished[rank][index] = now
        if len(still) == len(waiting):
            raise ValueError("the Plans wait for each other")
        waiting = still
    return result


def draw(plans: Sequence[Plan], collective: str) -> Figure:
    """Return a figure of the Plans of a group, given by rank."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    timeline = schedule(plans)
    parts = max((message.part for message in timeline.messages), default=0) + 1
    colours = _colours(parts)

    def shift(part: int) -> float:
        """Parts that go the same way lie side by side."""
        return 0.3 * ((part + 0.5) / parts - 0.5)

    height = 1.5 + 0.62 * max(timeline.steps, 1)
    width = 1.2 + 0.72 * len(plans)
    figure = Figure(figsize=(max(width, 4.2), height), layout="constrained")
    axes = figure.add_subplot()
    _draw_frame(axes, plans, timeline.steps)
    for message in timeline.messages:
        axes.annotate(
            "",
            xy=(message.destination + shift(message.part), message.end),
            xytext=(message.source + shift(message.part), message.begin),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.16,head_length=0.4",
                "color": colours[message.part],
                "linewidth": 1.3,
                "shrinkA": 3,
                "shrinkB": 3,
            },
        )
    for rank, time, part, is_final in timeline.folds:
        axes.plot(
            rank + shift(part),
            time,
            "o",
            markersize=6,
            markerfacecolor=colours[part] if is_final else "white",
            markeredgecolor=colours[part],
            zorder=3,
        )
    ranks = plans[0]["world_size"]
    axes.set_title(f"{plans[0]['algorithm']}, {collective}, {ranks} ranks", fontsize=10)
    legend = [
        Line2D([], [], color=colours[part], linewidth=2, label=f"part {part}")
        for part in range(parts)
        if parts > 1
    ]
    if timeline.folds:
        style: dict[str, Any] = {"color": "none", "marker": "o", "markeredgecolor": "dimgrey"}
        legend += [
            Line2D([], [], markerfacecolor="white", label="fold", **style),
            Line2D([], [], markerfacecolor="dimgrey", label="result", **style),
        ]
    if legend:
        axes.legend(
            handles=legend,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize=8,
        )
    return figure


def _colours(parts: int) -> list[Any]:
    from matplotlib import colormaps

    if parts <= len(LINES):
        return list(LINES[:parts])
    return [colormaps["viridis"](part / (parts - 1)) for part in range(parts)]


def _draw_frame(axes: Axes, plans: Sequence[Plan], steps: int) -> None:
    for rank in range(len(plans)):
        axes.axvline(rank, color="lightgrey", linewidth=1, zorder=0)
    ranks = plans[0]["world_size"]
    names = [str(rank) if rank < ranks else f"s{rank - ranks}" for rank in range(len(plans))]
    axes.set_xticks(range(len(plans)), names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_yticks(range(steps + 1))
    axes.set_ylabel("step", fontsize=8)
    axes.set_xlim(-0.5, len(plans) - 0.5)
    axes.set_ylim(steps + 0.35, -0.35)
    for side in axes.spines.values():
        side.set_visible(False)
