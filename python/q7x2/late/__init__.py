"""Updates that do not wait for late ranks.

docs/late_workers.md says which one to take.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "lag": ("FollowLag", "LagEvent", "LagFacts"),
    "quorum": ("QuorumSGD", "QuorumSGDStats"),
    "quorum_code": ("GradientCode", "Part"),
    "stale_stats": ("StaleSGDStats",),
    "updates": ("StaleSGD",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.late.lag import FollowLag as FollowLag
    from q7x2.late.lag import LagEvent as LagEvent
    from q7x2.late.lag import LagFacts as LagFacts
    from q7x2.late.quorum import QuorumSGD as QuorumSGD
    from q7x2.late.quorum import QuorumSGDStats as QuorumSGDStats
    from q7x2.late.quorum_code import GradientCode as GradientCode
    from q7x2.late.quorum_code import Part as Part
    from q7x2.late.stale_stats import StaleSGDStats as StaleSGDStats
    from q7x2.late.updates import StaleSGD as StaleSGD
