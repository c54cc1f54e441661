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
    "_core.hook_state": ("HookStateError",),
    "cadence.delayed": ("DelayedUpdates", "DelayedUpdatesStats"),
    "cadence.diloco": ("DiLoCo",),
    "cadence.diloco_clock": ("DiLoCoStats",),
    "cadence.micro_batches": ("MicroBatchEvent", "MicroBatches"),
    "cadence.outer": ("OuterSGD",),
    "cadence.quorum_diloco": ("QuorumDiLoCo", "QuorumDiLoCoStats"),
    "collectives.barrier": ("monitored_barrier",),
    "collectives.coded": ("all_gather", "all_reduce", "reduce_scatter"),
    "collectives.forced_algorithm": ("algorithm",),
    "embedding.clip": ("clip_grad_norm_",),
    "embedding.sharded": ("EmbeddingStats", "ShardedEmbedding"),
    "fsdp.options": ("Sharded", "ShardedStats"),
    "groups.accelerators": ("register_accelerator",),
    "groups.description": ("Description", "describe"),
    "groups.process_group": ("ProcessGroup",),
    "groups.reconfiguration": ("reconfigure", "reconfigure_handle", "reconfigure_handles"),
    "hooks.attached": ("Attached", "HookEvent", "HookStats"),
    "hooks.options": (
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
    "late.lag": ("FollowLag", "LagEvent", "LagFacts"),
    "late.quorum": ("Quorum", "QuorumStats"),
    "late.updates": ("LateUpdates", "LateUpdatesStats"),
    "observe.metrics": ("Scalars", "serve_metrics"),
    "observe.opentelemetry": ("export_to_opentelemetry",),
    "observe.recorder": ("dump", "flight_recorder"),
    "observe.statistics": ("stats",),
    "observe.step_log": ("log_step",),
    "observe.torch_profile": ("add_to_trace",),
    "optim.advising": ("Advice", "Proposal", "advise"),
    "optim.kfac": ("KFAC", "KFACStats"),
    "overlap.forward": ("AttachedForward",),
    "overlap.optimizer": ("NotElementwiseError",),
    "overlap.options": ("ForwardOverlap", "ForwardOverlapStats"),
    "overlap.timeline": ("ForwardTimeline",),
    "plan.history": ("plan_history",),
    "plan.tuning": ("Measurement", "tune"),
    "policy.accordion": ("Accordion",),
    "policy.accumulate": ("Accumulate",),
    "policy.bit_allocation": ("BitAllocation",),
    "policy.cadence": ("CadenceFacts", "FollowBandwidth", "PostLocal", "Tighten"),
    "policy.error_budget": ("ErrorBudget",),
    "policy.obeys_policies": ("Observation",),
    "policy.plot": ("plot_policy",),
    "policy.policy": (
        "Decision",
        "DivergenceError",
        "Facts",
        "GradientFacts",
        "Policy",
        "PolicyEvent",
        "Treatment",
        "Verdict",
    ),
    "tensor_parallel.choice": ("TensorOverlap",),
    "tensor_parallel.overlap": ("ColwiseOverlap", "RowwiseOverlap"),
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
    from q7x2._core.hook_state import HookStateError as HookStateError
    from q7x2.cadence.delayed import DelayedUpdates as DelayedUpdates
    from q7x2.cadence.delayed import DelayedUpdatesStats as DelayedUpdatesStats
    from q7x2.cadence.diloco import DiLoCo as DiLoCo
    from q7x2.cadence.diloco_clock import DiLoCoStats as DiLoCoStats
    from q7x2.cadence.micro_batches import MicroBatches as MicroBatches
    from q7x2.cadence.micro_batches import MicroBatchEvent as MicroBatchEvent
    from q7x2.cadence.outer import OuterSGD as OuterSGD
    from q7x2.cadence.quorum_diloco import QuorumDiLoCo as QuorumDiLoCo
    from q7x2.cadence.quorum_diloco import QuorumDiLoCoStats as QuorumDiLoCoStats
    from q7x2.collectives.barrier import monitored_barrier as monitored_barrier
    from q7x2.collectives.coded import all_gather as all_gather
    from q7x2.collectives.coded import all_reduce as all_reduce
    from q7x2.collectives.coded import reduce_scatter as reduce_scatter
    from q7x2.collectives.forced_algorithm import algorithm as algorithm
    from q7x2.embedding.clip import clip_grad_norm_ as clip_grad_norm_
    from q7x2.embedding.sharded import EmbeddingStats as EmbeddingStats
    from q7x2.embedding.sharded import ShardedEmbedding as ShardedEmbedding
    from q7x2.fsdp.options import Sharded as Sharded
    from q7x2.fsdp.options import ShardedStats as ShardedStats
    from q7x2.groups.accelerators import register_accelerator as register_accelerator
    from q7x2.groups.description import Description as Description
    from q7x2.groups.description import describe as describe
    from q7x2.groups.process_group import ProcessGroup as ProcessGroup
    from q7x2.groups.reconfiguration import reconfigure as reconfigure
    from q7x2.groups.reconfiguration import reconfigure_handle as reconfigure_handle
    from q7x2.groups.reconfiguration import reconfigure_handles as reconfigure_handles
    from q7x2.hooks.attached import Attached as Attached
    from q7x2.hooks.attached import HookEvent as HookEvent
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
    from q7x2.late.lag import FollowLag as FollowLag
    from q7x2.late.lag import LagEvent as LagEvent
    from q7x2.late.lag import LagFacts as LagFacts
    from q7x2.late.quorum import Quorum as Quorum
    from q7x2.late.quorum import QuorumStats as QuorumStats
    from q7x2.late.updates import LateUpdates as LateUpdates
    from q7x2.late.updates import LateUpdatesStats as LateUpdatesStats
    from q7x2.observe.metrics import Scalars as Scalars
    from q7x2.observe.metrics import serve_metrics as serve_metrics
    from q7x2.observe.opentelemetry import export_to_opentelemetry as export_to_opentelemetry
    from q7x2.observe.recorder import dump as dump
    from q7x2.observe.recorder import flight_recorder as flight_recorder
    from q7x2.observe.statistics import stats as stats
    from q7x2.observe.step_log import log_step as log_step
    from q7x2.observe.torch_profile import add_to_trace as add_to_trace
    from q7x2.optim.advising import Advice as Advice
    from q7x2.optim.advising import Proposal as Proposal
    from q7x2.optim.advising import advise as advise
    from q7x2.optim.kfac import KFAC as KFAC
    from q7x2.optim.kfac import KFACStats as KFACStats
    from q7x2.overlap.forward import AttachedForward as AttachedForward
    from q7x2.overlap.optimizer import NotElementwiseError as NotElementwiseError
    from q7x2.overlap.options import ForwardOverlap as ForwardOverlap
    from q7x2.overlap.options import ForwardOverlapStats as ForwardOverlapStats
    from q7x2.overlap.timeline import ForwardTimeline as ForwardTimeline
    from q7x2.plan.history import plan_history as plan_history
    from q7x2.plan.tuning import Measurement as Measurement
    from q7x2.plan.tuning import tune as tune
    from q7x2.policy.accordion import Accordion as Accordion
    from q7x2.policy.accumulate import Accumulate as Accumulate
    from q7x2.policy.bit_allocation import BitAllocation as BitAllocation
    from q7x2.policy.cadence import CadenceFacts as CadenceFacts
    from q7x2.policy.cadence import FollowBandwidth as FollowBandwidth
    from q7x2.policy.cadence import PostLocal as PostLocal
    from q7x2.policy.cadence import Tighten as Tighten
    from q7x2.policy.error_budget import ErrorBudget as ErrorBudget
    from q7x2.policy.obeys_policies import Observation as Observation
    from q7x2.policy.plot import plot_policy as plot_policy
    from q7x2.policy.policy import Decision as Decision
    from q7x2.policy.policy import DivergenceError as DivergenceError
    from q7x2.policy.policy import Facts as Facts
    from q7x2.policy.policy import GradientFacts as GradientFacts
    from q7x2.policy.policy import Policy as Policy
    from q7x2.policy.policy import PolicyEvent as PolicyEvent
    from q7x2.policy.policy import Treatment as Treatment
    from q7x2.policy.policy import Verdict as Verdict
    from q7x2.tensor_parallel.choice import TensorOverlap as TensorOverlap
    from q7x2.tensor_parallel.overlap import ColwiseOverlap as ColwiseOverlap
    from q7x2.tensor_parallel.overlap import RowwiseOverlap as RowwiseOverlap

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
