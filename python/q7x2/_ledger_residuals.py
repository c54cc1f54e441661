"""Reads from ledgers what codecs held back, and shows it in the report and in ``q7x2 top``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from html import escape

from q7x2._ledger_read import Ledger
from q7x2._policy import GradientFacts
from q7x2._report_axes import Axes
from q7x2._report_charts import line, section, table

_MOST_POINTS = 200
_MOST_ROWS = 12
_MOST_HOOKS = 4


@dataclasses.dataclass(frozen=True)
class Measured:
    """One hook.

    Attributes:
        name: The kind of hook and its number in the process.
        steps: Numbers of steps that were measured, and norms of all gradients together.
        last: The last one of these, by parameter, with how the gradient travelled.
    """

    name: str
    steps: list[tuple[int, GradientFacts]]
    last: dict[str, tuple[GradientFacts, str]]


def read(ledgers: Sequence[Ledger], *, newest_only: bool = False) -> list[Measured]:
    """All hooks of a job that were measured; with ``newest_only`` their last steps only."""
    newest = "step = (SELECT MAX(step) FROM residual AS other WHERE other.hook = residual.hook)"
    found: list[Measured] = []
    for ledger in ledgers:
        totals = ledger.residuals(
            "hook, name, step, SUM(gradient * gradient), SUM(residual * residual)",
            f"{newest if newest_only else 'TRUE'} GROUP BY hook, step ORDER BY hook, step",
        )
        hooks: dict[int, Measured] = {}
        for number, name, step, gradient, residual in totals:
            hook = hooks.setdefault(number, Measured(f"{name} {number}", [], {}))
            hook.steps.append((step, _facts(math.sqrt(gradient), math.sqrt(residual))))
        if hooks:
            rows = ledger.residuals("hook, parameter, gradient, residual, treatment", newest)
            for number, parameter, gradient, residual, treatment in rows:
                hooks[number].last[parameter] = _facts(gradient, residual), treatment
        found += hooks.values()
    return found


def _facts(gradient: float, residual: float) -> GradientFacts:
    return GradientFacts(gradient, residual, 0)


def _worst(hook: Measured) -> list[tuple[str, GradientFacts, str]]:
    rows = [(name, facts, treatment) for name, (facts, treatment) in hook.last.items()]
    return sorted(rows, key=lambda row: -row[1].relative_error)


def lines(ledgers: Sequence[Ledger]) -> str:
    """For ``q7x2 top``: one line per hook; empty if nothing was measured."""
    return "\n".join(_line(hook) for hook in read(ledgers, newest_only=True)[:_MOST_HOOKS])


def _line(hook: Measured) -> str:
    step, total = hook.steps[-1]
    name, worst, _ = _worst(hook)[0]
    return (
        f"{hook.name}, step {step:,}: residual / gradient {total.relative_error:.3g}, "
        f"most in {name} ({worst.relative_error:.3g})"
    )


def report(ledgers: Sequence[Ledger], axes: Axes) -> str:
    """The section of the report; empty if nothing was measured in two steps."""
    hooks = [hook for hook in read(ledgers) if len(hook.steps) > 1]
    return section(
        "Residual and codec error over time",
        "What codecs held back, beside the gradients: L2 norms over all ranks and parameters. The "
        "error is the residual before a step divided by the gradient of the step.",
        "".join("".join(_charts(hook, axes)) for hook in hooks[:_MOST_HOOKS]),
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
                treatment,
            ]
            for name, facts, treatment in _worst(hook)[:_MOST_ROWS]
        ],
    )
