"""A PyTorch distributed backend over UCX for training where the network is the bottleneck.

``torch.distributed.init_process_group("q7x2")`` works as soon as the package is installed; nothing
needs to be imported. This module holds what goes beyond the c10d interface. The compiled module and
UCX are loaded when they are first needed, not on import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._accelerators import register_accelerator
from q7x2._advise import Advice, Proposal, advise
from q7x2._algorithm import algorithm
from q7x2._attach import attach
from q7x2._attached import Attached, HookEvent, HookStats
from q7x2._attached_policy import Observation
from q7x2._autoload import register
from q7x2._barrier import monitored_barrier
from q7x2._coded import all_gather, all_reduce, reduce_scatter
from q7x2._describe import Description, describe
from q7x2._embedding_clip import clip_grad_norm_
from q7x2._flight_recorder import dump, flight_recorder
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
from q7x2._log_step import log_step
from q7x2._metrics import Scalars, serve_metrics
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
from q7x2._reconfigure import reconfigure, reconfigure_handle, reconfigure_handles
from q7x2._stats import stats
from q7x2._torch_profile import add_to_trace
from q7x2._tune import Measurement, tune

if TYPE_CHECKING:
    from q7x2 import comm_hooks, optim
    from q7x2._C import Codec, Options
    from q7x2._cadence import CadenceFacts, FollowBandwidth, PostLocal, Tighten
    from q7x2._delayed import DelayedUpdates, DelayedUpdatesStats
    from q7x2._diloco import DiLoCo
    from q7x2._diloco_clock import DiLoCoStats
    from q7x2._diloco_outer import OuterSGD
    from q7x2._embedding import EmbeddingStats, ShardedEmbedding
    from q7x2._kfac import KFAC, KFACStats
    from q7x2._quorum import Quorum, QuorumStats
    from q7x2._quorum_diloco import QuorumDiLoCo, QuorumDiLoCoStats

    __version__: str

__all__ = [
    "EF21",
    "KFAC",
    "Accordion",
    "Accumulate",
    "Advice",
    "Allreduce",
    "Attached",
    "BitAllocation",
    "BlockSparse",
    "CadenceFacts",
    "Codec",
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
    "GradientFacts",
    "HookEvent",
    "HookOptions",
    "HookStateError",
    "HookStats",
    "KFACStats",
    "Measurement",
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
    "Scalars",
    "Sharded",
    "ShardedEmbedding",
    "ShardedStats",
    "SignSGD",
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

# Modules that import torch themselves, by the names that users find in this one.
_LATE = {
    "CadenceFacts": "_cadence",
    "DelayedUpdates": "_delayed",
    "DelayedUpdatesStats": "_delayed",
    "DiLoCo": "_diloco",
    "DiLoCoStats": "_diloco_clock",
    "EmbeddingStats": "_embedding",
    "FollowBandwidth": "_cadence",
    "KFAC": "_kfac",
    "KFACStats": "_kfac",
    "OuterSGD": "_diloco_outer",
    "PostLocal": "_cadence",
    "Quorum": "_quorum",
    "QuorumDiLoCo": "_quorum_diloco",
    "QuorumDiLoCoStats": "_quorum_diloco",
    "QuorumStats": "_quorum",
    "ShardedEmbedding": "_embedding",
    "Tighten": "_cadence",
}

register()


def __getattr__(name: str) -> Any:
    if name in ("Codec", "Options"):
        from q7x2._extension import load

        return getattr(load(), name)
    if name in ("comm_hooks", "optim"):
        from importlib import import_module

        return import_module(f"q7x2.{name}")
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(f"q7x2.{_LATE[name]}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("q7x2")
    raise AttributeError(f"module 'q7x2' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
