"""The section of the report on what codecs held back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from q7x2.ledger.residuals import MOST_HOOKS, Measured, read, worst
from q7x2.report.axes import Axes
from q7x2.report.charts import line, section, table

if TYPE_CHECKING:
    from q7x2.ledger.reader import Ledger

_MOST_POINTS = 200
_MOST_ROWS = 12


def report(ledgers: Sequence[Ledger], axes: Axes) -> str:
    """The section of the report; empty if nothing was measured in two steps."""
    hooks = [hook for hook in read(ledgers) if len(hook.steps) > 1]
    return section(
        "Residual and codec error over time",
        "What codecs held back, beside the gradients: L2 norms over all ranks and parameters. The "
        "error is the residual before a step divided by the gradient of the step.",
        "".join("".join(_charts(hook, axes)) for hook in hooks[:MOST_HOOKS]),
    )


def _charts(hook: Measured, axes: Axes) -> Iterator[str]:
    count = min(len(hook.steps), _MOST_POINTS)
    chosen = [hook.steps[index * (len(hook.steps) - 1) // (count - 1)] for index in range(count)]
    yield '<div class="multiples">'
    for title, norms in (
        ("residual / gradient", [facts.relative_error for _, facts in chosen]),
        ("norm of the residual", [facts.residual for _, facts in chosen]),
    ):
        points = [(float(step), norm) for (step, _), norm in zip(chosen, norms, strict=True)]
        finite = [(step, y) for step, y in points if math.isfinite(y)]
        drawn = line(finite, axes, f"{hook.name}: {title}", "step {:,.0f}".format) if finite else ""
        yield f"<div><h3>{escape(hook.name)}: {title}</h3>{drawn}</div>"
    yield "</div>"
    yield table(
        ["parameter", "gradient", "residual", "residual / gradient", "decided"],
        [
            [
                name,
                f"{facts.gradient:.4g}",
                f"{facts.residual:.4g}",
                f"{facts.relative_error:.3g}",
                policy,
            ]
            for name, facts, policy in worst(hook)[:_MOST_ROWS]
        ],
    )
