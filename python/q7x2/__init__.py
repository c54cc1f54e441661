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
    "_accelerators": ("register_accelerator",),
    "_advise": ("Advice", "Proposal", "advise"),
    "_algorithm": ("algorithm",),
    "_attach": ("attach",),
    "_attached": ("Attached", "HookEvent", "HookStats"),
    "_attached_policy": ("Observation",),
    "_barrier": ("monitored_barrier",),
    "_cadence": ("CadenceFacts", "FollowBandwidth", "PostLocal", "Tighten"),
    "_coded": ("all_gather", "all_reduce", "reduce_scatter"),
    "_delayed": ("DelayedUpdates", "DelayedUpdatesStats"),
    "_describe": ("Description", "describe"),
    "_diloco": ("DiLoCo",),
    "_diloco_clock": ("DiLoCoStats",),
    "_diloco_outer": ("OuterSGD",),
    "_embedding": ("EmbeddingStats", "ShardedEmbedding"),
    "_embedding_clip": ("clip_grad_norm_",),
    "_flight_recorder": ("dump", "flight_recorder"),
    "_forward_overlap": ("AttachedForward",),
    "_forward_overlap_optimizer": ("NotElementwiseError",),
    "_forward_overlap_options": ("ForwardOverlap", "ForwardOverlapStats"),
    "_forward_overlap_timeline": ("ForwardTimeline",),
    "_fsdp_options": ("Sharded", "ShardedStats"),
    "_hook_options": (
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
    "_hook_state": ("HookStateError",),
    "_kfac": ("KFAC", "KFACStats"),
    "_late": ("LateUpdates", "LateUpdatesStats"),
    "_late_lag": ("FollowLag", "LagEvent", "LagFacts"),
    "_log_step": ("log_step",),
    "_metrics": ("Scalars", "serve_metrics"),
    "_micro_batches": ("MicroBatchEvent", "MicroBatches"),
    "_opentelemetry": ("export_to_opentelemetry",),
    "_plan_history": ("plan_history",),
    "_policy": (
        "Decision",
        "DivergenceError",
        "Facts",
        "GradientFacts",
        "Policy",
        "PolicyEvent",
        "Treatment",
        "Verdict",
    ),
    "_policy_accordion": ("Accordion",),
    "_policy_bits": ("BitAllocation",),
    "_policy_budget": ("ErrorBudget",),
    "_policy_cadence": ("Accumulate",),
    "_policy_plot": ("plot_policy",),
    "_process_group": ("ProcessGroup",),
    "_quorum": ("Quorum", "QuorumStats"),
    "_quorum_diloco": ("QuorumDiLoCo", "QuorumDiLoCoStats"),
    "_reconfigure": ("reconfigure", "reconfigure_handle", "reconfigure_handles"),
    "_stats": ("stats",),
    "_tensor_parallel": ("ColwiseOverlap", "RowwiseOverlap"),
    "_tensor_parallel_choice": ("TensorOverlap",),
    "_torch_profile": ("add_to_trace",),
    "_tune": ("Measurement", "tune"),
}
_COMPILED = ("Codec", "Options")
_MODULES = ("comm_hooks", "optim")
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_COMPILED, *_MODULES, "__version__"])

# The same names for type checkers; `as` says that they are public.
if TYPE_CHECKING:
    from q7x2 import comm_hooks as comm_hooks
    from q7x2 import optim as optim
    from q7x2._accelerators import register_accelerator as register_accelerator
    from q7x2._advise import Advice as Advice
    from q7x2._advise import Proposal as Proposal
    from q7x2._advise import advise as advise
    from q7x2._algorithm import algorithm as algorithm
    from q7x2._attach import attach as attach
    from q7x2._attached import Attached as Attached
    from q7x2._attached import HookEvent as HookEvent
    from q7x2._attached import HookStats as HookStats
    from q7x2._attached_policy import Observation as Observation
    from q7x2._barrier import monitored_barrier as monitored_barrier
    from q7x2._C import Codec as Codec
    from q7x2._C import Options as Options
    from q7x2._cadence import CadenceFacts as CadenceFacts
    from q7x2._cadence import FollowBandwidth as FollowBandwidth
    from q7x2._cadence import PostLocal as PostLocal
    from q7x2._cadence import Tighten as Tighten
    from q7x2._coded import all_gather as all_gather
    from q7x2._coded import all_reduce as all_reduce
    from q7x2._coded import reduce_scatter as reduce_scatter
    from q7x2._delayed import DelayedUpdates as DelayedUpdates
    from q7x2._delayed import DelayedUpdatesStats as DelayedUpdatesStats
    from q7x2._describe import Description as Description
    from q7x2._describe import describe as describe
    from q7x2._diloco import DiLoCo as DiLoCo
    from q7x2._diloco_clock import DiLoCoStats as DiLoCoStats
    from q7x2._diloco_outer import OuterSGD as OuterSGD
    from q7x2._embedding import EmbeddingStats as EmbeddingStats
    from q7x2._embedding import ShardedEmbedding as ShardedEmbedding
    from q7x2._embedding_clip import clip_grad_norm_ as clip_grad_norm_
    from q7x2._flight_recorder import dump as dump
    from q7x2._flight_recorder import flight_recorder as flight_recorder
    from q7x2._forward_overlap import AttachedForward as AttachedForward
    from q7x2._forward_overlap_optimizer import NotElementwiseError as NotElementwiseError
    from q7x2._forward_overlap_options import ForwardOverlap as ForwardOverlap
    from q7x2._forward_overlap_options import ForwardOverlapStats as ForwardOverlapStats
    from q7x2._forward_overlap_timeline import ForwardTimeline as ForwardTimeline
    from q7x2._fsdp_options import Sharded as Sharded
    from q7x2._fsdp_options import ShardedStats as ShardedStats
    from q7x2._hook_options import EF21 as EF21
    from q7x2._hook_options import Allreduce as Allreduce
    from q7x2._hook_options import BlockSparse as BlockSparse
    from q7x2._hook_options import Compose as Compose
    from q7x2._hook_options import Compressed as Compressed
    from q7x2._hook_options import HookOptions as HookOptions
    from q7x2._hook_options import OneBit as OneBit
    from q7x2._hook_options import PowerSGD as PowerSGD
    from q7x2._hook_options import Quantize as Quantize
    from q7x2._hook_options import SignSGD as SignSGD
    from q7x2._hook_options import TopK as TopK
    from q7x2._hook_state import HookStateError as HookStateError
    from q7x2._kfac import KFAC as KFAC
    from q7x2._kfac import KFACStats as KFACStats
    from q7x2._late import LateUpdates as LateUpdates
    from q7x2._late import LateUpdatesStats as LateUpdatesStats
    from q7x2._late_lag import FollowLag as FollowLag
    from q7x2._late_lag import LagEvent as LagEvent
    from q7x2._late_lag import LagFacts as LagFacts
    from q7x2._log_step import log_step as log_step
    from q7x2._metrics import Scalars as Scalars
    from q7x2._metrics import serve_metrics as serve_metrics
    from q7x2._micro_batches import MicroBatches as MicroBatches
    from q7x2._micro_batches import MicroBatchEvent as MicroBatchEvent
    from q7x2._opentelemetry import export_to_opentelemetry as export_to_opentelemetry
    from q7x2._plan_history import plan_history as plan_history
    from q7x2._policy import Decision as Decision
    from q7x2._policy import DivergenceError as DivergenceError
    from q7x2._policy import Facts as Facts
    from q7x2._policy import GradientFacts as GradientFacts
    from q7x2._policy import Policy as Policy
    from q7x2._policy import PolicyEvent as PolicyEvent
    from q7x2._policy import Treatment as Treatment
    from q7x2._policy import Verdict as Verdict
    from q7x2._policy_accordion import Accordion as Accordion
    from q7x2._policy_bits import BitAllocation as BitAllocation
    from q7x2._policy_budget import ErrorBudget as ErrorBudget
    from q7x2._policy_cadence import Accumulate as Accumulate
    from q7x2._policy_plot import plot_policy as plot_policy
    from q7x2._process_group import ProcessGroup as ProcessGroup
    from q7x2._quorum import Quorum as Quorum
    from q7x2._quorum import QuorumStats as QuorumStats
    from q7x2._quorum_diloco import QuorumDiLoCo as QuorumDiLoCo
    from q7x2._quorum_diloco import QuorumDiLoCoStats as QuorumDiLoCoStats
    from q7x2._reconfigure import reconfigure as reconfigure
    from q7x2._reconfigure import reconfigure_handle as reconfigure_handle
    from q7x2._reconfigure import reconfigure_handles as reconfigure_handles
    from q7x2._stats import stats as stats
    from q7x2._tensor_parallel import ColwiseOverlap as ColwiseOverlap
    from q7x2._tensor_parallel import RowwiseOverlap as RowwiseOverlap
    from q7x2._tensor_parallel_choice import TensorOverlap as TensorOverlap
    from q7x2._torch_profile import add_to_trace as add_to_trace
    from q7x2._tune import Measurement as Measurement
    from q7x2._tune import tune as tune

    __version__: str

register()


def __getattr__(name: str) -> Any:
    if name in _COMPILED:
        from q7x2._extension import load

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
