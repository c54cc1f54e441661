"""Tensor-parallel layers whose messages overlap with their products.

docs/tensor_parallel.md has examples and measurements.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "choice": ("LayerStats",),
    "overlap": ("ColwiseOverlap", "RowwiseOverlap"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.tensor_parallel.choice import LayerStats as LayerStats
    from q7x2.tensor_parallel.overlap import ColwiseOverlap as ColwiseOverlap
    from q7x2.tensor_parallel.overlap import RowwiseOverlap as RowwiseOverlap
