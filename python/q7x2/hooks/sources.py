"""``GradientSource``: what hands the gradients of a model to a hook.

There is one per kind of model: :class:`DDPSource` here, and those of modules without DDP in files
of their own. Everything else about a hook is the same for all of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from q7x2.hooks.runner import check_has_no_hook, reduced_parameters, register

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._C import HookRunner
    from q7x2.hooks.options import HookOptions

    Named = list[tuple[str, torch.Tensor]]


class GradientSource(Protocol):
    """A model whose gradients a hook can reduce.

    Attributes:
        model: The module whose forward begins a step.
        group: The process group over which gradients are averaged.
        device: That of the gradients.
        parameters: What is reduced, by name. The number of a parameter is its place here.
    """

    model: Any
    group: ProcessGroup
    device: torch.device
    parameters: Named

    def connect(self, runner: HookRunner, hook: HookOptions) -> None:
        """Give all gradients to ``runner`` from the next backward on."""

    def unreduced(self) -> AbstractContextManager[None]:
        """In it, a backward leaves gradients on their rank."""

    def release(self) -> None:
        """The hook is detached: take back what :meth:`connect` has changed, if that is possible."""


class DDPSource:
    """A DistributedDataParallel, whose reducer has buckets.

    Args:
        ddp: The model. It must have no hook.
        model: The module whose forward begins a step; ``ddp`` if None.
        names: The names of the parameters by what ``ddp`` calls them; its own if None.

    Raises:
        RuntimeError: It has a hook.
        ValueError: torch.distributed does not know its group, or its reducer takes no hook.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        model: Any = None,
        names: list[str] | None = None,
    ) -> None:
        import torch.distributed as dist

        self.model: Any = ddp if model is None else model
        self._ddp = ddp
        self.group = ddp.process_group
        if self.group not in dist.distributed_c10d._world.pg_map:
            raise ValueError(
                "attach needs a group that torch.distributed knows, made by init_process_group or "
                "new_group"
            )
        check_has_no_hook(ddp)
        self.parameters = reduced_parameters(ddp)
        if names is not None:
            self.parameters = [(names[int(name)], p) for name, p in self.parameters]
        self.device = self.parameters[0][1].device

    def connect(self, runner: HookRunner, hook: HookOptions) -> None:
        register(self._ddp, runner, hook)

    def unreduced(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._ddp.no_sync()
        return context

    def release(self) -> None:
        """DDP itself cannot be rid of a hook: it stays registered."""
