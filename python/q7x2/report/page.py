"""The page of ``q7x2 report``: HTML with its styles inside, without scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from html import escape

from q7x2._core.units import bytes_text, time_text
from q7x2.ledger.causes import Analysis
from q7x2.ledger.critical_path import PARTS
from q7x2.ledger.prices import Prices
from q7x2.ledger.reader import Ledger
from q7x2.ledger.solution import Costs
from q7x2.ledger.summary import PHASES, Summary
from q7x2.report import costs as report_costs
from q7x2.report import operations as report_operations
from q7x2.report import rates as report_rates
from q7x2.report import residuals as report_residuals
from q7x2.report import steps as report_steps
from q7x2.report.axes import Axes
from q7x2.report.charts import section, table
from q7x2.report.style import STYLE


@dataclasses.dataclass(frozen=True)
class Job:
    """What the page shows of one job. ``name`` tells it from another one."""

    name: str
    ledgers: Sequence[Ledger]
    summary: Summary
    analysis: Analysis
    prices: Prices | None = None
    costs: Costs | None = None


def page(jobs: Sequence[Job]) -> str:
    """Return the whole page, of one job or of two side by side."""
    first = jobs[0].summary
    if len(jobs) == 1:
        title = f"q7x2 report: {len(first.ranks)} ranks, {time_text(first.seconds)}"
        body = "\n".join(text for text in _sections(jobs[0], Axes()) if text)
    else:
        title = f"q7x2 report: {jobs[0].name} and {jobs[1].name}"
        body = _comparison(*jobs) + "\n" + _side_by_side(*jobs)
    width = "" if len(jobs) == 1 else ' class="wider"'
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head><body>\n<main{width}>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n</main></body></html>\n"
    )


def _sections(job: Job, axes: Axes) -> list[str]:
    facts = job.summary.facts
    about = (
        f'<p class="note">q7x2 {escape(facts["q7x2"])}, torch {escape(facts["torch"])}, '
        f"{escape(facts['processor'] or facts['machine'])}</p>"
    )
    return [
        about,
        report_operations.tiles(job.summary),
        report_operations.failures(job.summary),
        *report_steps.sections(job.analysis, axes),
        report_rates.report(job.ledgers),
        *report_costs.sections(job.ledgers, job.analysis, job.prices, job.costs, axes),
        report_residuals.report(job.ledgers, axes),
        *report_operations.sections(job.summary, axes),
    ]


def _side_by_side(one: Job, other: Job) -> str:
    rows = [tuple(f'<h2 class="run">{escape(job.name)}</h2>' for job in (one, other))]
    axes = Axes()
    for job in (one, other):
        _sections(job, axes)  # says how far its axes reach
    rows += zip(_sections(one, axes), _sections(other, axes), strict=True)
    # On a narrow screen, where one is below the other, each says whose it is.
    cells = (
        f'<div data-job="{escape(job.name)}">{text}</div>'
        for row in rows
        if any(row)
        for job, text in zip((one, other), row, strict=True)
    )
    return f'<div class="pair">{"".join(cells)}</div>'


def _comparison(one: Job, other: Job) -> str:
    rows = []
    for (name, before, text), (_, after, _) in zip(_figures(one), _figures(other), strict=True):
        if before is None or after is None or max(before, after) < 1e-9:
            continue
        rows.append([name, text(before), text(after), _change(before, after)])
    causes = "".join(
        f"<li>{escape(job.name)}: {escape(job.analysis.causes[0].text)}</li>"
        for job in (one, other)
        if job.analysis.causes
    )
    note = "Means per step, and the first cause. The change is that from the first to the second."
    body = table(["", one.name, other.name, "change"], rows) + f"<ul>{causes}</ul>"
    return section("Comparison", note, body)


def _change(before: float, after: float) -> str:
    """In percent, or as a multiple where percents would have to be converted to be understood."""
    if before <= 0:
        return ""
    if after >= 2 * before:
        return f"{after / before:.3g} x"
    return f"{round(100 * (after / before - 1), 1) + 0:+.1f} %"  # adding 0 makes -0 a +0


def _figures(job: Job) -> Iterator[tuple[str, float | None, Callable[[float], str]]]:
    """Name, value and format of what is compared; None: it is unknown."""
    summary, analysis = job.summary, job.analysis
    steps = len(analysis.steps) or 1
    yield "steps", float(steps), "{:,.0f}".format
    yield "step", analysis.seconds(), time_text
    for part in PARTS:
        yield part, analysis.part(part), time_text
    yield "overlap", analysis.overlap, "{:.1%}".format
    for phase in PHASES:
        name = f"{phase} in operations, all ranks"
        yield name, summary.phase(phase) / steps, time_text
    network = sum(each.sent_network for each in summary.ranks)
    memory = sum(each.sent_memory for each in summary.ranks)
    yield "over networks", network / steps, bytes_text
    yield "through memory", memory / steps, bytes_text
    losses = [loss for loss in analysis.boundaries.losses if loss is not None and loss == loss]
    yield "lowest loss", min(losses, default=None), "{:.6g}".format
    costs = job.costs
    money = None if costs is None else costs.run.money / steps
    currency = "" if costs is None else f" {costs.run.currency}"
    yield "money", money, lambda value: f"{value:.4g}{currency}"
    joules = None if costs is None else costs.run.joules
    yield "energy", None if joules is None else joules / steps, "{:.4g} J".format
