"""Models of the first ``replicate()``: a DistributedDataParallel hidden in a module's state.

``torch.distributed._composable.replicate`` makes a DistributedDataParallel of the parameters in the
first forward, and never runs its forward. A hook goes to its reducer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from q7x2._core.backward import without_gradient_sync
from q7x2.hooks.sources import DDPSource

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def is_composable(model: object) -> bool:
    """Whether ``model`` is what the first ``replicate()`` returns."""
    from torch.distributed._composable.replicate import DDP

    return isinstance(model, DDP)


def watch_replication(told: Callable[[torch.nn.Module], None]) -> None:
    """Call ``told`` with each module that the first ``replicate()`` takes from now on."""
    from torch.distributed._composable.replicate import _ReplicateState

    State: Any = _ReplicateState
    record = State.record_init_args

    @functools.wraps(record)
    def watched(state: Any, model: torch.nn.Module, *arguments: Any, **options: Any) -> None:
        record(state, model, *arguments, **options)
        told(model)

    State.record_init_args = watched


def is_hidden_ddp(ddp: Any) -> bool:
    """Whether ``replicate()`` has made this DistributedDataParallel, which runs no forward."""
    return isinstance(ddp.module, torch.nn.ParameterList)


def group_of(model: Any) -> ProcessGroup:
    """The process group of what the first ``replicate()`` has returned."""
    group: ProcessGroup = _made_ddp(model)[0].process_group
    return group


def _made_ddp(model: Any) -> tuple[Any, list[str]]:
    """Its DistributedDataParallel, and the names of the parameters in that."""
    from torch.distributed._composable.replicate import replicate

    state = replicate.state(model)
    if state._init_args:
        state.lazy_init()
    return state._ddp, state._param_names


class ComposableSource(DDPSource):
    """A model of the first ``replicate()``.

    Args:
        model: What it returned, before or after its first forward.

    Raises:
        RuntimeError: It has a hook.
    """

    def __init__(self, model: Any) -> None:
        ddp, names = _made_ddp(model)
        super().__init__(ddp, model, names)

    def unreduced(self) -> AbstractContextManager[None]:
        return without_gradient_sync(self.model)
