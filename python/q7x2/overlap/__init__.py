"""Reductions that go on during the next forward pass.

docs/forward_overlap.md has examples and measurements.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "attach_forward": ("attach",),
    "forward": ("AttachedForward",),
    "optimizer": ("NotElementwiseError",),
    "options": ("OverlapOptions", "OverlapStats"),
    "timeline": ("ForwardTimeline",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.overlap.attach_forward import attach as attach
    from q7x2.overlap.forward import AttachedForward as AttachedForward
    from q7x2.overlap.optimizer import NotElementwiseError as NotElementwiseError
    from q7x2.overlap.options import OverlapOptions as OverlapOptions
    from q7x2.overlap.options import OverlapStats as OverlapStats
    from q7x2.overlap.timeline import ForwardTimeline as ForwardTimeline
