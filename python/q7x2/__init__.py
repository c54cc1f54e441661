"""A PyTorch distributed backend over UCX for training where the network is the bottleneck.

``torch.distributed.init_process_group("q7x2")`` works as soon as the package is installed; nothing
needs to be imported. This module holds what goes beyond the c10d interface. Its parts, the
compiled module and UCX are loaded when they are first needed, not on import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from q7x2._autoload import register

# What nearly every user needs; everything else is public in its package. A module is imported when
# one of its names is first used: all of them together would add 20 ms to every `import torch`.
_NAMES = {
    "_attach": ("attach",),
    "_attach_all": ("load_state_dict", "state_dict"),
    "collectives": (
        "Window",
        "all_gather_into_tensor",
        "all_reduce",
        "monitored_barrier",
        "reduce_scatter_tensor",
    ),
    "fsdp": ("Sharded",),
    "groups": (
        "ProcessGroup",
        "describe",
        "reconfigure",
        "reconfigure_handle",
        "reconfigure_handles",
    ),
    "hooks": (
        "Allreduce",
        "BlockSparse",
        "Compose",
        "EF21",
        "OneBit",
        "PowerSGD",
        "Quantize",
        "SignSGD",
        "TopK",
    ),
    "observe": ("dump", "flight_recorder", "log_step", "stats"),
    "optim": ("advise",),
    "plan": ("tune",),
}
_COMPILED = ("Codec", "Options")
_PACKAGES = (
    "cadence",
    "collectives",
    "embedding",
    "fabric",
    "fsdp",
    "functional",
    "groups",
    "hooks",
    "late",
    "observe",
    "optim",
    "overlap",
    "plan",
    "policy",
    "tensor_parallel",
)
_MODULES = ("comm_hooks", "torchft")
_RENAMED = {
    "DelayedUpdates": "PipelinedSGD",
    "ForwardOverlap": "OverlapOptions",
    "LateUpdates": "StaleSGD",
    "Quorum": "QuorumSGD",
    "QuorumDiLoCo": "DiLoCo",
    "QuorumDiLoCoStats": "DiLoCoStats",
    "TensorOverlap": "LayerStats",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_COMPILED, "__version__"])

# The same names for type checkers; `as` says that they are public.
if TYPE_CHECKING:
    from q7x2 import cadence as cadence
    from q7x2 import collectives as collectives
    from q7x2 import comm_hooks as comm_hooks
    from q7x2 import embedding as embedding
    from q7x2 import fabric as fabric
    from q7x2 import fsdp as fsdp
    from q7x2 import functional as functional
    from q7x2 import groups as groups
    from q7x2 import hooks as hooks
    from q7x2 import late as late
    from q7x2 import observe as observe
    from q7x2 import optim as optim
    from q7x2 import overlap as overlap
    from q7x2 import plan as plan
    from q7x2 import policy as policy
    from q7x2 import tensor_parallel as tensor_parallel
    from q7x2 import torchft as torchft
    from q7x2._attach import attach as attach
    from q7x2._attach_all import load_state_dict as load_state_dict
    from q7x2._attach_all import state_dict as state_dict
    from q7x2._C import Codec as Codec
    from q7x2._C import Options as Options
    from q7x2.collectives import Window as Window
    from q7x2.collectives import all_gather_into_tensor as all_gather_into_tensor
    from q7x2.collectives import all_reduce as all_reduce
    from q7x2.collectives import monitored_barrier as monitored_barrier
    from q7x2.collectives import reduce_scatter_tensor as reduce_scatter_tensor
    from q7x2.fsdp import Sharded as Sharded
    from q7x2.groups import ProcessGroup as ProcessGroup
    from q7x2.groups import describe as describe
    from q7x2.groups import reconfigure as reconfigure
    from q7x2.groups import reconfigure_handle as reconfigure_handle
    from q7x2.groups import reconfigure_handles as reconfigure_handles
    from q7x2.hooks import EF21 as EF21
    from q7x2.hooks import Allreduce as Allreduce
    from q7x2.hooks import BlockSparse as BlockSparse
    from q7x2.hooks import Compose as Compose
    from q7x2.hooks import OneBit as OneBit
    from q7x2.hooks import PowerSGD as PowerSGD
    from q7x2.hooks import Quantize as Quantize
    from q7x2.hooks import SignSGD as SignSGD
    from q7x2.hooks import TopK as TopK
    from q7x2.observe import dump as dump
    from q7x2.observe import flight_recorder as flight_recorder
    from q7x2.observe import log_step as log_step
    from q7x2.observe import stats as stats
    from q7x2.optim import advise as advise
    from q7x2.plan import tune as tune

    __version__: str

register()


def __getattr__(name: str) -> Any:
    if name in _COMPILED:
        from q7x2._core.extension import load

        value = getattr(load(), name)
    elif name in _PACKAGES or name in _MODULES:
        value = _module(name)
    elif name in _HOMES:
        value = getattr(import_module(f"q7x2.{_HOMES[name]}"), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("q7x2")
    else:
        raise AttributeError(f"module 'q7x2' has no attribute {name!r}{_hint(name)}")
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    """A package or module; AttributeError if another package that it needs is not installed.

    So ``hasattr`` works; ``import`` raises the ImportError.
    """
    try:
        return import_module(f"q7x2.{name}")
    except ImportError as error:
        if name in _PACKAGES:
            raise
        raise AttributeError(str(error)) from error


def _hint(name: str) -> str:
    """Which public name somebody wants who asks for ``q7x2.<name>``; empty if there is none."""
    wanted = _RENAMED.get(name, name)
    if wanted.startswith("_"):
        return ""
    if wanted in __all__:
        return f"; did you mean q7x2.{wanted}?"
    for package in _PACKAGES:
        if wanted in getattr(import_module(f"q7x2.{package}"), "__all__", ()):
            return f"; did you mean q7x2.{package}.{wanted}?"
    return ""


def __dir__() -> list[str]:
    return __all__
