"""A PyTorch distributed backend over UCX for training where the network is the bottleneck.

``torch.distributed.init_process_group("q7x2")`` works as soon as the package is installed; nothing
needs to be imported. This module holds what goes beyond the c10d interface. Its parts, the
compiled module and UCX are loaded when they are first needed, not on import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from q7x2._autoload import register

# A module is imported when one of its names is first used: all of them together would add 20 ms to
# every `import torch`.
_NAMES = {
    "_attach": ("attach",),
    "_core": ("HookStateError",),
    "cadence": (
        "DelayedUpdates",
        "DelayedUpdatesStats",
        "DiLoCo",
        "DiLoCoStats",
        "MicroBatchEvent",
        "MicroBatches",
        "OuterSGD",
        "QuorumDiLoCo",
        "QuorumDiLoCoStats",
    ),
    "collectives": ("algorithm", "all_gather", "all_reduce", "monitored_barrier", "reduce_scatter"),
    "embedding": ("EmbeddingStats", "ShardedEmbedding", "clip_grad_norm_"),
    "fsdp": ("Sharded", "ShardedStats"),
    "groups": (
        "Description",
        "ProcessGroup",
        "describe",
        "reconfigure",
        "reconfigure_handle",
        "reconfigure_handles",
        "register_accelerator",
    ),
    "hooks": (
        "Allreduce",
        "Attached",
        "BlockSparse",
        "Compose",
        "Compressed",
        "EF21",
        "HookEvent",
        "HookOptions",
        "HookStats",
        "OneBit",
        "PowerSGD",
        "Quantize",
        "SignSGD",
        "TopK",
    ),
    "late": (
        "FollowLag",
        "LagEvent",
        "LagFacts",
        "LateUpdates",
        "LateUpdatesStats",
        "Quorum",
        "QuorumStats",
    ),
    "observe": (
        "Scalars",
        "add_to_trace",
        "dump",
        "export_to_opentelemetry",
        "flight_recorder",
        "log_step",
        "serve_metrics",
        "stats",
    ),
    "optim": ("Advice", "KFAC", "KFACStats", "Proposal", "advise"),
    "overlap": (
        "AttachedForward",
        "ForwardOverlap",
        "ForwardOverlapStats",
        "ForwardTimeline",
        "NotElementwiseError",
    ),
    "plan": ("Measurement", "plan_history", "tune"),
    "policy": (
        "Accordion",
        "Accumulate",
        "BitAllocation",
        "CadenceFacts",
        "Decision",
        "DivergenceError",
        "ErrorBudget",
        "Facts",
        "FollowBandwidth",
        "GradientFacts",
        "Observation",
        "Policy",
        "PolicyEvent",
        "PostLocal",
        "Tighten",
        "Treatment",
        "Verdict",
        "plot_policy",
    ),
    "tensor_parallel": ("ColwiseOverlap", "RowwiseOverlap", "TensorOverlap"),
}
_COMPILED = ("Codec", "Options")
_MODULES = ("comm_hooks", "optim")
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_COMPILED, *_MODULES, "__version__"])

# The same names for type checkers; `as` says that they are public.
if TYPE_CHECKING:
    from q7x2 import comm_hooks as comm_hooks
    from q7x2 import optim as optim
    from q7x2._attach import attach as attach
    from q7x2._C import Codec as Codec
    from q7x2._C import Options as Options
    from q7x2._core import HookStateError as HookStateError
    from q7x2.cadence import DelayedUpdates as DelayedUpdates
    from q7x2.cadence import DelayedUpdatesStats as DelayedUpdatesStats
    from q7x2.cadence import DiLoCo as DiLoCo
    from q7x2.cadence import DiLoCoStats as DiLoCoStats
    from q7x2.cadence import MicroBatches as MicroBatches
    from q7x2.cadence import MicroBatchEvent as MicroBatchEvent
    from q7x2.cadence import OuterSGD as OuterSGD
    from q7x2.cadence import QuorumDiLoCo as QuorumDiLoCo
    from q7x2.cadence import QuorumDiLoCoStats as QuorumDiLoCoStats
    from q7x2.collectives import algorithm as algorithm
    from q7x2.collectives import all_gather as all_gather
    from q7x2.collectives import all_reduce as all_reduce
    from q7x2.collectives import monitored_barrier as monitored_barrier
    from q7x2.collectives import reduce_scatter as reduce_scatter
    from q7x2.embedding import EmbeddingStats as EmbeddingStats
    from q7x2.embedding import ShardedEmbedding as ShardedEmbedding
    from q7x2.embedding import clip_grad_norm_ as clip_grad_norm_
    from q7x2.fsdp import Sharded as Sharded
    from q7x2.fsdp import ShardedStats as ShardedStats
    from q7x2.groups import Description as Description
    from q7x2.groups import ProcessGroup as ProcessGroup
    from q7x2.groups import describe as describe
    from q7x2.groups import reconfigure as reconfigure
    from q7x2.groups import reconfigure_handle as reconfigure_handle
    from q7x2.groups import reconfigure_handles as reconfigure_handles
    from q7x2.groups import register_accelerator as register_accelerator
    from q7x2.hooks import EF21 as EF21
    from q7x2.hooks import Allreduce as Allreduce
    from q7x2.hooks import Attached as Attached
    from q7x2.hooks import BlockSparse as BlockSparse
    from q7x2.hooks import Compose as Compose
    from q7x2.hooks import Compressed as Compressed
    from q7x2.hooks import HookEvent as HookEvent
    from q7x2.hooks import HookOptions as HookOptions
    from q7x2.hooks import HookStats as HookStats
    from q7x2.hooks import OneBit as OneBit
    from q7x2.hooks import PowerSGD as PowerSGD
    from q7x2.hooks import Quantize as Quantize
    from q7x2.hooks import SignSGD as SignSGD
    from q7x2.hooks import TopK as TopK
    from q7x2.late import FollowLag as FollowLag
    from q7x2.late import LagEvent as LagEvent
    from q7x2.late import LagFacts as LagFacts
    from q7x2.late import LateUpdates as LateUpdates
    from q7x2.late import LateUpdatesStats as LateUpdatesStats
    from q7x2.late import Quorum as Quorum
    from q7x2.late import QuorumStats as QuorumStats
    from q7x2.observe import Scalars as Scalars
    from q7x2.observe import add_to_trace as add_to_trace
    from q7x2.observe import dump as dump
    from q7x2.observe import export_to_opentelemetry as export_to_opentelemetry
    from q7x2.observe import flight_recorder as flight_recorder
    from q7x2.observe import log_step as log_step
    from q7x2.observe import serve_metrics as serve_metrics
    from q7x2.observe import stats as stats
    from q7x2.optim import KFAC as KFAC
    from q7x2.optim import Advice as Advice
    from q7x2.optim import KFACStats as KFACStats
    from q7x2.optim import Proposal as Proposal
    from q7x2.optim import advise as advise
    from q7x2.overlap import AttachedForward as AttachedForward
    from q7x2.overlap import ForwardOverlap as ForwardOverlap
    from q7x2.overlap import ForwardOverlapStats as ForwardOverlapStats
    from q7x2.overlap import ForwardTimeline as ForwardTimeline
    from q7x2.overlap import NotElementwiseError as NotElementwiseError
    from q7x2.plan import Measurement as Measurement
    from q7x2.plan import plan_history as plan_history
    from q7x2.plan import tune as tune
    from q7x2.policy import Accordion as Accordion
    from q7x2.policy import Accumulate as Accumulate
    from q7x2.policy import BitAllocation as BitAllocation
    from q7x2.policy import CadenceFacts as CadenceFacts
    from q7x2.policy import Decision as Decision
    from q7x2.policy import DivergenceError as DivergenceError
    from q7x2.policy import ErrorBudget as ErrorBudget
    from q7x2.policy import Facts as Facts
    from q7x2.policy import FollowBandwidth as FollowBandwidth
    from q7x2.policy import GradientFacts as GradientFacts
    from q7x2.policy import Observation as Observation
    from q7x2.policy import Policy as Policy
    from q7x2.policy import PolicyEvent as PolicyEvent
    from q7x2.policy import PostLocal as PostLocal
    from q7x2.policy import Tighten as Tighten
    from q7x2.policy import Treatment as Treatment
    from q7x2.policy import Verdict as Verdict
    from q7x2.policy import plot_policy as plot_policy
    from q7x2.tensor_parallel import ColwiseOverlap as ColwiseOverlap
    from q7x2.tensor_parallel import RowwiseOverlap as RowwiseOverlap
    from q7x2.tensor_parallel import TensorOverlap as TensorOverlap

    __version__: str

register()


def __getattr__(name: str) -> Any:
    if name in _COMPILED:
        from q7x2._core.extension import load

        value = getattr(load(), name)
    elif name in _MODULES:
        value = import_module(f"q7x2.{name}")
    elif name in _HOMES:
        value = getattr(import_module(f"q7x2.{_HOMES[name]}"), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("q7x2")
    else:
        raise AttributeError(f"module 'q7x2' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
