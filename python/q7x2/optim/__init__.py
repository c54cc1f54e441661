"""Optimizers, and advice on which settings to train with.

docs/kfac.md and docs/hooks.md have the optimizers, and docs/policy.md the advice.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "advising": ("Advice", "Proposal", "advise"),
    "kfac": ("KFAC", "KFACStats"),
    "over_hooks": ("OneBitAdam", "DistributedLion"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.optim.advising import Advice as Advice
    from q7x2.optim.advising import Proposal as Proposal
    from q7x2.optim.advising import advise as advise
    from q7x2.optim.kfac import KFAC as KFAC
    from q7x2.optim.kfac import KFACStats as KFACStats
    from q7x2.optim.over_hooks import DistributedLion as DistributedLion
    from q7x2.optim.over_hooks import OneBitAdam as OneBitAdam
