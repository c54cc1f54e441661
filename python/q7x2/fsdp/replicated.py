"""Models of the ``replicate()`` that is made of FSDP2: its all-reduces go through a hook.

FSDP2 reduces the gradients of one module together, and waits for each all-reduce. It takes no other
all-reduce, but it calls a function with what its collectives gave. So it is told that there is
nothing to reduce over, and the function is the all-reduce::

    post-backward of module 2   FSDP lays out the gradients; the hook begins to reduce them in place
    post-backward of module 1   the same; meanwhile 2 is on its way
    end of backward             wait for both

The gradients of the parameters are views of what the hook reduces, so nothing is copied. If FSDP
has to convert them or to add them to others, it gets zeros, and the means are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._core.backward import (
    at_end_of_backward,
    is_backward_running,
    without_gradient_sync,
)
from q7x2.fsdp.replica_mesh import check_same_ranks, without_replicas
from q7x2.fsdp.torch_internals import (
    check_entry_points,
    dtype_of_parameters,
    install,
    param_groups,
    reduced_dtype,
    takes_late_gradients,
)
from q7x2.hooks.in_flight import BucketsInFlight

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._C import HookRunner
    from q7x2.hooks.options import HookOptions


class ReplicatedSource:
    """A model of ``torch.distributed._composable.replicate_with_fsdp.replicate``.

    Args:
        model: The outermost module that was replicated.

    Raises:
        RuntimeError: It has a hook.
        ValueError: It has no parameters that need gradients, or modules with other ranks.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        groups = [group for _, _, group in param_groups(model)]
        for group in groups:
            check_entry_points(group)
            if group._all_reduce_hook is not None:
                raise RuntimeError(
                    "this model of replicate() has an all-reduce hook already: detach it before "
                    "you attach another one"
                )
        self.group: ProcessGroup = check_same_ranks(groups)
        self.device: torch.device = groups[0].device
        names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
        self.parameters: list[tuple[str, torch.Tensor]] = []
        self._parts: list[_Part] = []
        # In backward the last module comes first.
        for group in reversed(groups):
            trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
            if not trained:
                continue
            start = len(self.parameters)
            self.parameters += [
                (
                    names[id(p.sharded_param)],
                    torch.empty(p._orig_size, dtype=reduced_dtype(p, group), device="meta"),
                )
                for p in trained
            ]
            numbers = list(range(start, len(self.parameters)))
            self._parts.append(_Part(self, group, len(self._parts), numbers, trained))
        if not self._parts:
            raise ValueError("the model has no replicated parameters that need gradients")
        self.world_size = dist.get_world_size(self.group)
        self.flight: BucketsInFlight
        self._is_armed = False
        self._restore: list[Callable[[], None]] = []

    def connect(self, runner: HookRunner, hook: HookOptions) -> None:
        del hook  # the runner has it
        self.flight = BucketsInFlight(runner)
        for part in self._parts:
            self._restore.append(without_replicas(part.group))
            self._restore.append(
                install(part.group, all_gather=None, reduce_scatter=None, all_reduce=part)
            )
        self._forward = self.model.register_forward_pre_hook(lambda *_: self._begin_forward())

    def unreduced(self) -> AbstractContextManager[None]:
        return without_gradient_sync(self.model)

    def release(self) -> None:
        while self._restore:
            self._restore.pop()()
        self._forward.remove()

    def arm(self) -> None:
        """End the step with this backward."""
        if not self._is_armed:
            self._is_armed = True
            at_end_of_backward(self.finish)

    def finish(self) -> None:
        """Wait for all gradients; the step is over."""
        self._is_armed = False
        with torch.no_grad():
            self.flight.finish()

    def _begin_forward(self) -> None:
        if self._is_armed and not is_backward_running():  # the last backward failed
            self._is_armed = False
            self.flight.drop()


class _Part:
    """What FSDP calls with the gradients of one param group.

    Args:
        index: The number of its bucket.
        numbers: Those of its parameters.
        trained: FSDP's parameters, in the order of the gradients.
    """

    def __init__(
        self,
        source: ReplicatedSource,
        group: Any,
        index: int,
        numbers: list[int],
        trained: list[Any],
    ) -> None:
        self.group = group
        self._source, self._index, self._numbers = source, index, numbers
        self._trained = trained
        self._sizes = [p._orig_size.numel() for p in trained]

    def __call__(self, gradient: torch.Tensor) -> None:
        if gradient.numel() != sum(self._sizes):
            raise RuntimeError(
                f"FSDP module {self.group._module_fqn or 'root'!r}: some of its parameters got no "
                f"gradient in this backward: expected all or none of them, {sum(self._sizes)} "
                f"elements, got {gradient.numel()}; set_reduce_scatter_unused_params(True) sends "
                "zeros"
            )
        source = self._source
        is_late = is_backward_running() and takes_late_gradients(self.group, gradient.dtype)
        buffer = gradient
        if is_late and not self._keeps(gradient):
            buffer = gradient.clone()
            gradient.zero_()
        # FSDP has divided by this factor, which is to divide the sum. The hook makes a mean.
        has_factor = self.group.gradient_divide_factor is not None

        def landed() -> None:
            if has_factor:
                buffer.mul_(source.world_size)
            if buffer is not gradient:
                self._add(buffer)

        if is_backward_running():
            source.arm()
        source.flight.submit(self._index, self._numbers, buffer, landed)
        if not is_late:
            source.flight.wait()
        if not is_backward_running():  # FSDP can finish a backward later
            source.finish()

    def _keeps(self, gradient: torch.Tensor) -> bool:
        """Whether FSDP makes the parameters' gradients views of ``gradient``."""
        return dtype_of_parameters(self.group) == gradient.dtype and all(
            p.sharded_param.grad is None for p in self._trained
        )

    def _add(self, mean: torch.Tensor) -> None:
        gradients = [p.sharded_param.grad.to_local() for p in self._trained]
        parts = [
            part.view(g.shape).to(g.dtype)
            for part, g in zip(torch.split(mean, self._sizes), gradients, strict=True)
        ]
        torch._foreach_add_(gradients, parts)
