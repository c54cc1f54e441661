"""Policies: how each gradient is compressed, and how often ranks communicate.

docs/policy.md has examples.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "accordion": ("Accordion",),
    "accumulate": ("Accumulate",),
    "bit_allocation": ("BitAllocation",),
    "cadence": ("CadenceFacts", "FollowBandwidth", "PostLocal", "Tighten"),
    "error_budget": ("ErrorBudget",),
    "obeys_policies": ("Observation",),
    "plot": ("plot_policy",),
    "policy": (
        "Decision",
        "DivergenceError",
        "Facts",
        "GradientFacts",
        "Policy",
        "PolicyEvent",
        "ParameterPolicy",
        "Verdict",
    ),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.policy.accordion import Accordion as Accordion
    from q7x2.policy.accumulate import Accumulate as Accumulate
    from q7x2.policy.bit_allocation import BitAllocation as BitAllocation
    from q7x2.policy.cadence import CadenceFacts as CadenceFacts
    from q7x2.policy.cadence import FollowBandwidth as FollowBandwidth
    from q7x2.policy.cadence import PostLocal as PostLocal
    from q7x2.policy.cadence import Tighten as Tighten
    from q7x2.policy.error_budget import ErrorBudget as ErrorBudget
    from q7x2.policy.obeys_policies import Observation as Observation
    from q7x2.policy.plot import plot_policy as plot_policy
    from q7x2.policy.policy import Decision as Decision
    from q7x2.policy.policy import DivergenceError as DivergenceError
    from q7x2.policy.policy import Facts as Facts
    from q7x2.policy.policy import GradientFacts as GradientFacts
    from q7x2.policy.policy import ParameterPolicy as ParameterPolicy
    from q7x2.policy.policy import Policy as Policy
    from q7x2.policy.policy import PolicyEvent as PolicyEvent
    from q7x2.policy.policy import Verdict as Verdict
