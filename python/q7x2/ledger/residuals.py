"""What codecs held back, read from ledgers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from q7x2.ledger.reader import Ledger
from q7x2.policy.policy import GradientFacts

MOST_HOOKS = 4
"""How many are shown."""


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
            rows = ledger.residuals("hook, parameter, gradient, residual, policy", newest)
            for number, parameter, gradient, residual, policy in rows:
                hooks[number].last[parameter] = _facts(gradient, residual), policy
        found += hooks.values()
    return found


def _facts(gradient: float, residual: float) -> GradientFacts:
    return GradientFacts(gradient, residual, 0)


def worst(hook: Measured) -> list[tuple[str, GradientFacts, str]]:
    """Parameters with how their gradients travelled, by relative error, the largest first."""
    rows = [(name, facts, policy) for name, (facts, policy) in hook.last.items()]
    return sorted(rows, key=lambda row: -row[1].relative_error)


def lines(ledgers: Sequence[Ledger]) -> str:
    """For ``q7x2 top``: one line per hook; empty if nothing was measured."""
    return "\n".join(_line(hook) for hook in read(ledgers, newest_only=True)[:MOST_HOOKS])


def _line(hook: Measured) -> str:
    step, total = hook.steps[-1]
    name, facts, _ = worst(hook)[0]
    return (
        f"{hook.name}, step {step:,}: residual / gradient {total.relative_error:.3g}, "
        f"most in {name} ({facts.relative_error:.3g})"
    )
