"""Updates that do not wait for late ranks.

docs/late_workers.md says which one to take.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "lag": ("FollowLag", "LagEvent", "LagFacts"),
    "quorum": ("Quorum", "QuorumStats"),
    "updates": ("LateUpdates", "LateUpdatesStats"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.late.lag import FollowLag as FollowLag
    from q7x2.late.lag import LagEvent as LagEvent
    from q7x2.late.lag import LagFacts as LagFacts
    from q7x2.late.quorum import Quorum as Quorum
    from q7x2.late.quorum import QuorumStats as QuorumStats
    from q7x2.late.updates import LateUpdates as LateUpdates
    from q7x2.late.updates import LateUpdatesStats as LateUpdatesStats
