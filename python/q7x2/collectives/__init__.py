"""Collectives beyond those of ``torch.distributed``: coded ones, and how the planner is steered.

docs/compressed.md says what is lost, and docs/planner.md how algorithms are chosen.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "barrier": ("monitored_barrier",),
    "coded": ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"),
    "forced_algorithm": ("algorithm",),
    "window": ("Window",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.collectives.barrier import monitored_barrier as monitored_barrier
    from q7x2.collectives.coded import all_gather_into_tensor as all_gather_into_tensor
    from q7x2.collectives.coded import all_reduce as all_reduce
    from q7x2.collectives.coded import reduce_scatter_tensor as reduce_scatter_tensor
    from q7x2.collectives.forced_algorithm import algorithm as algorithm
    from q7x2.collectives.window import Window as Window
