"""The sections of the report about steps: the critical path, its causes, and the loss."""

from __future__ import annotations

import statistics
from html import escape

from q7x2._core.units import percent_text, time_text
from q7x2.ledger.causes import Analysis
from q7x2.ledger.critical_path import PARTS, TEXTS, StepPath
from q7x2.report.axes import Axes
from q7x2.report.charts import bar, bars, columns, legend, section

_MOST_COLUMNS = 60
_MOST_CAUSES = 6
_ORIGINS = {
    "logged": "The ends of steps are those that the program gave to <code>q7x2.log_step</code>.",
    "estimated": "The ends of steps are estimated from operations that repeat.",
    "none": "No steps were found, so this is the path of the whole job.",
}


def sections(analysis: Analysis, axes: Axes) -> list[str]:
    """Those about steps; empty if there are no operations."""
    if not analysis.steps or analysis.seconds() == 0:
        return ["", ""]
    return [
        section("Why a step takes that long", _note(analysis), _causes(analysis)),
        section(
            "Critical path",
            "What the time of a step is spent on, over all ranks. The parts add up to the step. "
            + _overlap(analysis),
            _parts(analysis, axes) + _over_steps(analysis.steps, axes),
        ),
    ]


def _note(analysis: Analysis) -> str:
    number = len(analysis.steps)
    what = "The job" if analysis.boundaries.origin == "none" else f"{number:,} steps; the mean"
    return f"{what} takes {time_text(analysis.seconds())}. {_ORIGINS[analysis.boundaries.origin]}"


def _overlap(analysis: Analysis) -> str:
    share = percent_text(analysis.overlap or 0.0, 1)
    return f"While operations are in flight, programs go on for {share} of the time."


def _causes(analysis: Analysis) -> str:
    rows = "".join(
        f"<li>{escape(cause.text)}: {time_text(cause.seconds)} per step "
        f"({percent_text(cause.seconds, analysis.seconds())})</li>"
        for cause in analysis.causes[:_MOST_CAUSES]
    )
    return f"<ol>{rows}</ol>" if rows else ""


def _parts(analysis: Analysis, axes: Axes) -> str:
    seconds = analysis.seconds()
    longest = axes.reach("step", seconds)
    rows = []
    for part in PARTS:
        taken = analysis.part(part)
        value = f"{time_text(taken)}, {percent_text(taken, seconds)}"
        rows.append(bar(part, [(part, taken / longest)], value, TEXTS))
    return bars(rows)


def _over_steps(steps: list[StepPath], axes: Axes) -> str:
    if len(steps) < 2:
        return ""
    number = min(len(steps), _MOST_COLUMNS)
    bins, titles = [], []
    for index in range(number):
        first, end = index * len(steps) // number, (index + 1) * len(steps) // number
        chosen = steps[first:end]
        each = {part: statistics.fmean(s.parts[part] for s in chosen) * 1e3 for part in PARTS}
        bins.append(each)
        parts = ", ".join(f"{part} {time_text(ms / 1e3)}" for part, ms in each.items() if ms > 0)
        titles.append(f"steps {first + 1} to {end}: {parts}")
    below = ("step 1", f"step {len(steps) // 2:,}", f"step {len(steps):,}")
    return legend({part: TEXTS[part] for part in reversed(PARTS)}) + columns(
        bins, PARTS, titles=titles, below=below, axes=axes, name="parts of steps", unit=" ms"
    )
