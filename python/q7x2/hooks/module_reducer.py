"""``ModuleReducer``: the gradients of a plain ``torch.nn.Module``, in buckets of its own.

Autograd reports each gradient that it has accumulated. A bucket is handed to the hook when it is
full, in the order of buckets, and the end of the backward waits for all of them. So gradients are
means when ``backward()`` returns, as with DistributedDataParallel::

    backward    grad 9, grad 8 | grad 7, grad 6 | ...          end of backward
    buckets     0 is full: go    1 is full: go    the last one   zeros for what is missing; wait

A parameter that no rank has used keeps its ``grad``, which a MAX over one flag per parameter tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from q7x2._core.backward import at_end_of_backward, is_backward_running
from q7x2._core.groups import resolve_group
from q7x2.hooks.buckets import FIRST_BYTES, Bucket, assign
from q7x2.hooks.in_flight import BucketsInFlight

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._C import HookRunner
    from q7x2.hooks.module_join import JoinableModule
    from q7x2.hooks.options import HookOptions

_taken: WeakSet[torch.nn.Module] = WeakSet()  # those with a hook


class ModuleReducer:
    """A plain module whose parameters that need gradients are reduced over a process group.

    Args:
        model: The module. All ranks begin with the parameters and buffers of the group's first one.
        group: The process group.
        bucket_cap_mb: The MiB of gradients with which a bucket is full.

    Raises:
        TypeError: ``model`` has parameters that something else distributes.
        ValueError: It has no parameters that need gradients.
        RuntimeError: It has a hook.
    """

    def __init__(self, model: torch.nn.Module, group: ProcessGroup, bucket_cap_mb: float) -> None:
        self.model: Any = model
        self.group = resolve_group(group)
        inner: torch.nn.Module = getattr(model, "_orig_mod", model)  # torch.compile wraps it
        _check(inner)
        self.parameters: list[tuple[str, torch.Tensor]] = [
            (n, p) for n, p in inner.named_parameters() if p.requires_grad
        ]
        if not self.parameters:
            raise ValueError("the module has no parameters that need gradients")
        self._frozen = [(n, p) for n, p in inner.named_parameters() if not p.requires_grad]
        self._inner = inner
        self.device = self.parameters[0][1].device
        self._cap_bytes = int(bucket_cap_mb * (1 << 20))
        self._tensors = [p for _, p in self.parameters]
        self._syncs = True
        self._is_armed = False
        self._arrived: list[int] | None = []  # numbers in the order of the first backward
        self._used: torch.Tensor | None = None
        self._next = 0
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._flight: BucketsInFlight
        self.joinable: JoinableModule | None = None
        self.before_forward: list[Callable[[], None]] = []

    def connect(self, runner: HookRunner, hook: HookOptions) -> None:
        del hook  # the runner has it
        self.broadcast(0)
        self._flight = BucketsInFlight(runner)
        self._build(range(len(self._tensors)), [sys.maxsize])
        for number, parameter in enumerate(self._tensors):
            hooked: Any = parameter
            hooked.register_post_accumulate_grad_hook(_Arrival(self, number))
        self.model.register_forward_pre_hook(_BeforeForward(self))
        self.model.register_forward_hook(_AfterForward(self))
        _taken.add(self._inner)

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def release(self) -> None:
        """The gradients go on to be averaged, uncompressed, as with DistributedDataParallel."""

    @property
    def syncs(self) -> bool:
        """Whether a backward now reduces gradients."""
        return self._syncs

    @torch.no_grad()
    def broadcast(self, rank: int) -> None:
        """Give all ranks the parameters and buffers of one of them.

        Args:
            rank: Its number in the group.
        """
        source = dist.get_global_rank(self.group, rank)
        for tensor in (*self._inner.parameters(), *self._inner.buffers()):
            if tensor.numel():
                whole = tensor.detach().contiguous()
                dist.broadcast(whole, source, group=self.group)
                tensor.copy_(whole)

    def begin_forward(self) -> None:
        """The module's forward begins."""
        if is_backward_running():  # checkpointing computes it once more
            return
        if self._is_armed:  # the last backward failed
            self._reset()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {name!r} needs gradients now, but was frozen when the hook was "
                    "attached: expected the same parameters, because its ranks would drift apart"
                )
        if torch.is_grad_enabled():
            for call in self.before_forward:
                call()

    def watch(self, output: Any) -> None:
        """The module's forward has ended: notice the beginning of the backward of its output."""
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                hooked: Any = leaf
                hooked.register_hook(lambda _: self._arm())

    def arrive(self, number: int) -> None:
        """Autograd has accumulated the gradient of a parameter."""
        if not self._syncs:
            return
        self._arm()
        bucket = self._bucket_of[number]
        if bucket.is_launched:
            raise RuntimeError(
                f"parameter {self.parameters[number][0]!r} got a gradient after its bucket was "
                "reduced: expected one gradient per backward; checkpointing needs "
                "use_reentrant=False"
            )
        if self._arrived is not None and number in bucket.missing:
            self._arrived.append(number)
        bucket.missing.discard(number)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._launch()

    def shadow(self) -> None:
        """Take part in a step of ranks that still have inputs, with zeros."""
        self._finish(is_joined=True)

    def _arm(self) -> None:
        if self._syncs and not self._is_armed:
            self._is_armed = True
            at_end_of_backward(self._finish)

    def _launch(self, is_joined: bool = False) -> None:
        bucket = self._buckets[self._next]
        bucket.fill(is_joined)
        bucket.is_launched = True
        landed = (lambda: None) if is_joined else bucket.land
        self._flight.submit(self._next, bucket.numbers, bucket.buffer, landed)
        self._next += 1

    def _finish(self, is_joined: bool = False) -> None:
        """The backward has ended: hand over the rest, and wait for everything."""
        try:
            while self._next < len(self._buckets):
                self._launch(is_joined)
            here = [p.grad is not None and not is_joined for p in self._tensors]
            used = torch.tensor(here, dtype=torch.int32, device=self.device)
            work = dist.all_reduce(used, dist.ReduceOp.MAX, group=self.group, async_op=True)
            self._flight.finish()
            work.wait()
            if not is_joined and not all(here):
                everywhere = [flag != 0 for flag in used.tolist()]
                for bucket in self._buckets:
                    bucket.create(everywhere)
        finally:
            self._reset()
        if self._arrived is not None:
            self._rebuild(self._arrived)

    def _reset(self) -> None:
        self._flight.drop()
        self._is_armed, self._next = False, 0
        for bucket in self._buckets:
            bucket.reset()

    def _rebuild(self, arrived: list[int]) -> None:
        """Put gradients into buckets as they came in the first rank's backward."""
        rest = set(range(len(self._tensors))) - set(arrived)
        order = torch.tensor(arrived + sorted(rest, reverse=True), device=self.device)
        dist.broadcast(order, dist.get_global_rank(self.group, 0), group=self.group)
        limits = [min(FIRST_BYTES, self._cap_bytes), self._cap_bytes]
        self._build(order.tolist(), limits)
        self._arrived = None

    def _build(self, order: Any, limits: list[int]) -> None:
        self._buckets = [
            Bucket(numbers, [self._tensors[number] for number in numbers])
            for numbers in assign(order, self._tensors, limits)
        ]
        self._bucket_of = {n: bucket for bucket in self._buckets for n in bucket.numbers}


def _check(model: torch.nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.hooks.composable import is_composable

    if model in _taken:
        raise RuntimeError("this module has a hook already, and keeps it, even if it is detached")
    for name, module in model.named_modules():
        if isinstance(module, (DistributedDataParallel, FSDPModule)) or is_composable(module):
            raise TypeError(
                f"expected a plain module, but {name or 'it'!r} is a {type(module).__name__}, "
                "which reduces its gradients itself: attach the hook to that"
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise TypeError(
                f"parameter {name!r} is a DTensor: expected a module that every rank holds whole; "
                "shard it with fully_shard, or replicate it with replicate()"
            )


class _OfReducer:
    """Something that calls a reducer. In a model's copies it does nothing: they have no hook."""

    def __init__(self, reducer: ModuleReducer | None = None) -> None:
        self._reducer = reducer

    def __reduce__(self) -> tuple[type[_OfReducer], tuple[()]]:
        return type(self), ()


class _BeforeForward(_OfReducer):
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *_: Any) -> None:
        if self._reducer is not None:
            self._reducer.begin_forward()


class _AfterForward(_OfReducer):
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, _: Any, __: Any, output: Any) -> None:
        if self._reducer is not None:
            self._reducer.watch(output)


class _Arrival(_OfReducer):
    def __init__(self, reducer: ModuleReducer | None = None, number: int = 0) -> None:
        super().__init__(reducer)
        self._number = number

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, _: torch.Tensor) -> None:
        if self._reducer is not None:
            self._reducer.arrive(self._number)
