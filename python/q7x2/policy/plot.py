"""``plot_policy``: what a policy noticed and decided, over the steps of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from q7x2._core.palette import BLUE, VERMILION
from q7x2.policy.policy import Policy, PolicyEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = {"divergence": VERMILION, "roll_back": BLUE}


def plot_policy(policy: Policy) -> Figure:
    """Draw the history of a policy: validation losses, relative errors and levels over the steps.

    Args:
        policy: The policy whose ``history`` is drawn.

    Returns:
        A figure of matplotlib with three diagrams; ``figure.savefig(FILE)`` writes it.

    Raises:
        ImportError: matplotlib is missing: ``pip install 'q7x2[draw]'``.
        TypeError: ``policy`` is no policy.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a q7x2.policy.Policy, got {policy!r}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    losses, alarms, levels = figure.subplots(3, 1, sharex=True)
    _draw_losses(losses, policy.history)
    seen = [event for event in policy.history if event.kind == "alarm"]
    alarms.plot([e.step for e in seen], [e.value for e in seen], ".", color=VERMILION)
    alarms.set_ylabel("relative error\nof alarms")
    _draw_levels(levels, policy.history)
    levels.set_xlabel("reductions")
    return figure


def _draw_losses(axes: Axes, history: list[PolicyEvent]) -> None:
    seen = [event for event in history if event.kind == "validation"]
    axes.plot([e.step for e in seen], [e.value for e in seen], marker=".")
    axes.set_ylabel("validation loss")
    for kind, color in _MARKS.items():
        for i, event in enumerate(e for e in history if e.kind == kind):
            label = kind.replace("_", " ") if i == 0 else None
            axes.axvline(event.step, color=color, linestyle="--", label=label)
    if any(event.kind in _MARKS for event in history):
        axes.legend()


def _draw_levels(axes: Axes, history: list[PolicyEvent]) -> None:
    """The common level as a line, those of single gradients as points."""
    common = [e for e in history if e.level and not e.parameter]
    single = [e for e in history if e.level and e.parameter]
    names = list(dict.fromkeys(e.level for e in [*common, *single]))
    axes.step(
        [e.step for e in common],
        [names.index(e.level) for e in common],
        where="post",
        label="all gradients",
    )
    axes.plot([e.step for e in single], [names.index(e.level) for e in single], ".", label="one")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylabel("level")
    if names:
        axes.legend()
