"""Methods that communicate rarely or late: DiLoCo, delayed updates, micro-batches.

docs/cadence.md says which method suits which link; docs/late_workers.md has micro-batches.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "delayed": ("PipelinedSGD", "PipelinedSGDStats"),
    "diloco": ("DiLoCo",),
    "diloco_clock": ("DiLoCoStats",),
    "diloco_options": ("QuorumOptions",),
    "micro_batches": ("MicroBatchEvent", "MicroBatches"),
    "outer": ("OuterSGD",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.cadence.delayed import PipelinedSGD as PipelinedSGD
    from q7x2.cadence.delayed import PipelinedSGDStats as PipelinedSGDStats
    from q7x2.cadence.diloco import DiLoCo as DiLoCo
    from q7x2.cadence.diloco_clock import DiLoCoStats as DiLoCoStats
    from q7x2.cadence.diloco_options import QuorumOptions as QuorumOptions
    from q7x2.cadence.micro_batches import MicroBatches as MicroBatches
    from q7x2.cadence.micro_batches import MicroBatchEvent as MicroBatchEvent
    from q7x2.cadence.outer import OuterSGD as OuterSGD
