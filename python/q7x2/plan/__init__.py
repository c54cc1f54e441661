"""The planner's choices: shown, measured, simulated, and taken from files.

docs/planner.md says how a choice is made.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "history": ("plan_history",),
    "tuning": ("Measurement", "tune"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.plan.history import plan_history as plan_history
    from q7x2.plan.tuning import Measurement as Measurement
    from q7x2.plan.tuning import tune as tune
