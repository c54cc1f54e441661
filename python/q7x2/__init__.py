"""A PyTorch distributed backend over UCX for training where the network is the bottleneck.

``torch.distributed.init_process_group("q7x2")`` works as soon as the package is installed; nothing
needs to be imported. This module holds what goes beyond the c10d interface. Its parts, the
compiled module and UCX are loaded when they are first needed, not on import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from q7x2._autoload import register

if TYPE_CHECKING:
    from q7x2 import comm_hooks, optim
    from q7x2._accelerators import register_accelerator
    from q7x2._advise import Advice, Proposal, advise
    from q7x2._algorithm import algorithm
    from q7x2._attach import attach
    from q7x2._attached import Attached, HookEvent, HookStats
    from q7x2._attached_policy import Observation
    from q7x2._barrier import monitored_barrier
    from q7x2._C import Codec, Options
    from q7x2._cadence import CadenceFacts, FollowBandwidth, PostLocal, Tighten
    from q7x2._coded import all_gather, all_reduce, reduce_scatter
    from q7x2._delayed import DelayedUpdates, DelayedUpdatesStats
    from q7x2._describe import Description, describe
    from q7x2._diloco import DiLoCo
    from q7x2._diloco_clock import DiLoCoStats
    from q7x2._diloco_outer import OuterSGD
    from q7x2._embedding import EmbeddingStats, ShardedEmbedding
    from q7x2._embedding_clip import clip_grad_norm_
    from q7x2._flight_recorder import dump, flight_recorder
    from q7x2._forward_overlap import AttachedForward
    from q7x2._forward_overlap_optimizer import NotElementwiseError
    from q7x2._forward_overlap_options import ForwardOverlap, ForwardOverlapStats
    from q7x2._fsdp_options import Sharded, ShardedStats
    from q7x2._hook_options import (
        EF21,
        Allreduce,
        BlockSparse,
        Compose,
        Compressed,
        HookOptions,
        OneBit,
        PowerSGD,
        Quantize,
        SignSGD,
        TopK,
    )
    from q7x2._hook_state import HookStateError
    from q7x2._kfac import KFAC, KFACStats
    from q7x2._late import LateUpdates, LateUpdatesStats
    from q7x2._late_lag import FollowLag, LagEvent, LagFacts
    from q7x2._log_step import log_step
    from q7x2._metrics import Scalars, serve_metrics
    from q7x2._micro_batches import MicroBatches, MicroBatchEvent
    from q7x2._opentelemetry import export_to_opentelemetry
    from q7x2._plan_history import plan_history
    from q7x2._policy import (
        Decision,
        DivergenceError,
        Facts,
        GradientFacts,
        Policy,
        PolicyEvent,
        Treatment,
        Verdict,
    )
    from q7x2._policy_accordion import Accordion
    from q7x2._policy_bits import BitAllocation
    from q7x2._policy_budget import ErrorBudget
    from q7x2._policy_cadence import Accumulate
    from q7x2._policy_plot import plot_policy
    from q7x2._process_group import ProcessGroup
    from q7x2._quorum import Quorum, QuorumStats
    from q7x2._quorum_diloco import QuorumDiLoCo, QuorumDiLoCoStats
    from q7x2._reconfigure import reconfigure, reconfigure_handle, reconfigure_handles
    from q7x2._stats import stats
    from q7x2._tensor_parallel import ColwiseOverlap, RowwiseOverlap
    from q7x2._tensor_parallel_choice import TensorOverlap
    from q7x2._torch_profile import add_to_trace
    from q7x2._tune import Measurement, tune

    __version__: str

__all__ = [
    "EF21",
    "KFAC",
    "Accordion",
    "Accumulate",
    "Advice",
    "Allreduce",
    "Attached",
    "AttachedForward",
    "BitAllocation",
    "BlockSparse",
    "CadenceFacts",
    "Codec",
    "ColwiseOverlap",
    "Compose",
    "Compressed",
    "Decision",
    "DelayedUpdates",
    "DelayedUpdatesStats",
    "Description",
    "DiLoCo",
    "DiLoCoStats",
    "DivergenceError",
    "EmbeddingStats",
    "ErrorBudget",
    "Facts",
    "FollowBandwidth",
    "FollowLag",
    "ForwardOverlap",
    "ForwardOverlapStats",
    "GradientFacts",
    "HookEvent",
    "HookOptions",
    "HookStateError",
    "HookStats",
    "KFACStats",
    "LagEvent",
    "LagFacts",
    "LateUpdates",
    "LateUpdatesStats",
    "Measurement",
    "MicroBatchEvent",
    "MicroBatches",
    "NotElementwiseError",
    "Observation",
    "OneBit",
    "Options",
    "OuterSGD",
    "Policy",
    "PolicyEvent",
    "PostLocal",
    "PowerSGD",
    "ProcessGroup",
    "Proposal",
    "Quantize",
    "Quorum",
    "QuorumDiLoCo",
    "QuorumDiLoCoStats",
    "QuorumStats",
    "RowwiseOverlap",
    "Scalars",
    "Sharded",
    "ShardedEmbedding",
    "ShardedStats",
    "SignSGD",
    "TensorOverlap",
    "Tighten",
    "TopK",
    "Treatment",
    "Verdict",
    "__version__",
    "add_to_trace",
    "advise",
    "algorithm",
    "all_gather",
    "all_reduce",
    "attach",
    "clip_grad_norm_",
    "comm_hooks",
    "describe",
    "dump",
    "export_to_opentelemetry",
    "flight_recorder",
    "log_step",
    "monitored_barrier",
    "optim",
    "plan_history",
    "plot_policy",
    "reconfigure",
    "reconfigure_handle",
    "reconfigure_handles",
    "reduce_scatter",
    "register_accelerator",
    "serve_metrics",
    "stats",
    "tune",
]

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
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

register()


def __getattr__(name: str) -> Any:
    if name in ("Codec", "Options"):
        from q7x2._extension import load

        value = getattr(load(), name)
    elif name in ("comm_hooks", "optim"):
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
