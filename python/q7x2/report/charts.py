"""The charts of the report: bars, stacked columns and lines, as HTML without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from q7x2.report.axes import Axes


def section(title: str, note: str, body: str) -> str:
    """A part of the page; nothing if it has no body."""
    if not body:
        return ""
    return f'<section><h2>{title}</h2><p class="note">{note}</p>\n{body}</section>'


def legend(texts: Mapping[str, str]) -> str:
    """The colours of classes, by class, and what they mean."""
    keys = "".join(f'<span><i class="{name}"></i>{text}</span>' for name, text in texts.items())
    return f'<div class="legend">{keys}</div>'


def bar(name: str, parts: Iterable[tuple[str, float]], value: str, texts: Mapping[str, str]) -> str:
    """A row of ``bars``. ``parts``: classes and their shares of the whole width."""
    pieces = "".join(
        f'<i class="{kind}" style="width:{100 * share:.2f}%" title="{texts.get(kind, kind)}"></i>'
        for kind, share in parts
        if share > 0
    )
    return f"<span>{escape(name)}</span><div>{pieces}</div><b>{value}</b>"


def bars(rows: Sequence[str]) -> str:
    """Horizontal bars; nothing if there are none."""
    return f'<div class="bars">{"".join(rows)}</div>' if rows else ""


def columns(
    bins: Sequence[Mapping[str, float]],
    classes: Sequence[str],
    *,
    titles: Sequence[str],
    below: Sequence[str],
    axes: Axes,
    name: str,
    unit: str = "",
) -> str:
    """Stacked columns, the first of ``classes`` at the bottom.

    ``titles``: shown beside the pointer, one per column. ``below``: texts below the axis, evenly
    spread. ``name``: of the axis upwards in ``axes``.
    """
    tallest = max((sum(each.values()) for each in bins), default=0.0)
    highest = round_up(axes.reach(name, tallest) or 1)
    stacks = []
    for each, title in zip(bins, titles, strict=True):
        parts = "".join(
            f'<i class="{name}" style="height:{100 * each[name] / highest:.2f}%"></i>'
            for name in reversed(classes)
            if each[name] > 0
        )
        stacks.append(f'<div title="{escape(title)}">{parts}</div>')
    return (
        f'<div class="chart">{_axis(highest, unit)}<div class="columns">'
        f"{''.join(stacks)}</div></div>{_below(below)}"
    )


def line(
    points: Sequence[tuple[float, float]],
    axes: Axes,
    name: str,
    text: Callable[[float], str],
) -> str:
    """A line through points that are in the order of x. The y axis begins at 0.

    ``name``: of the axes in ``axes``. ``text``: what is below an end of the x axis.
    """
    highest = round_up(axes.reach(f"{name}, upwards", max(y for _, y in points)) or 1)
    first, last = axes.begin(name, points[0][0]), axes.reach(name, points[-1][0])
    width = (last - first) or 1
    path = " ".join(
        f"{100 * (x - first) / width:.2f},{100 - 100 * max(y, 0) / highest:.2f}" for x, y in points
    )
    return (
        f'<div class="chart">{_axis(highest, "")}<div class="columns">'
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{path}"/></svg></div></div>{_below((text(first), text(last)))}'
    )


def _axis(highest: float, unit: str) -> str:
    texts = (f"{highest:g}{unit}", f"{highest / 2:g}{unit}", "0")
    return f'<div class="axis">{"".join(f"<span>{text}</span>" for text in texts)}</div>'


def _below(texts: Sequence[str]) -> str:
    return f'<div class="times">{"".join(f"<span>{text}</span>" for text in texts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls if it is wider than the page."""
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def round_up(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)
