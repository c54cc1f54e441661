"""Compressed messages of FSDP2.

docs/fsdp.md has examples and measurements.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "options": ("Sharded", "ShardedStats"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.fsdp.options import Sharded as Sharded
    from q7x2.fsdp.options import ShardedStats as ShardedStats
