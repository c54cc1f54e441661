"""Communication hooks of DDP: what they send, and what they keep.

docs/hooks.md compares them; :func:`attach` takes one.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "attached": ("Attached", "HookEvent", "HookStateError", "HookStats"),
    "options": (
        "EF21",
        "Allreduce",
        "BlockSparse",
        "Compose",
        "Compressed",
        "HookOptions",
        "OneBit",
        "PowerSGD",
        "Quantize",
        "SignSGD",
        "TopK",
    ),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.hooks.attached import Attached as Attached
    from q7x2.hooks.attached import HookEvent as HookEvent
    from q7x2.hooks.attached import HookStateError as HookStateError
    from q7x2.hooks.attached import HookStats as HookStats
    from q7x2.hooks.options import EF21 as EF21
    from q7x2.hooks.options import Allreduce as Allreduce
    from q7x2.hooks.options import BlockSparse as BlockSparse
    from q7x2.hooks.options import Compose as Compose
    from q7x2.hooks.options import Compressed as Compressed
    from q7x2.hooks.options import HookOptions as HookOptions
    from q7x2.hooks.options import OneBit as OneBit
    from q7x2.hooks.options import PowerSGD as PowerSGD
    from q7x2.hooks.options import Quantize as Quantize
    from q7x2.hooks.options import SignSGD as SignSGD
    from q7x2.hooks.options import TopK as TopK
