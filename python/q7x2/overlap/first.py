"""The first steps of forward overlap: DDP's own, from which the chunks are chosen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup

from q7x2._core.exchange import broadcast
from q7x2.overlap.choice import Candidate, Chosen, choose, defaults
from q7x2.overlap.meter import StepMeter
from q7x2.overlap.model import BucketCosts, Moments
from q7x2.overlap.modules import Needs
from q7x2.overlap.optimizer import copy_over
from q7x2.overlap.options import OverlapOptions
from q7x2.overlap.order import SliceLengths
from q7x2.overlap.timeline import ForwardTimeline

_MEASURED = 6
_TRIES = 3


@dataclass(frozen=True)
class _Bucket:
    """A bucket of DDP; see :class:`BucketCosts`."""

    names: tuple[str, ...]
    begins: tuple[int, ...]
    length: int
    dtype: torch.dtype

    def costs(self, slice_length: int | None) -> BucketCosts:
        """Without what has been measured."""
        return BucketCosts(
            ready=0.0,
            names=self.names,
            begins=self.begins,
            needed=(),
            length=self.length,
            element_size=self.dtype.itemsize,
            slice_length=slice_length,
        )


class FirstSteps:
    """Reduces buckets as DDP does. Its first backward is followed by new buckets.

    Args:
        options: If they leave a choice, some more steps are measured.
        names: Those of the parameters, in the same order on all ranks.
        group: For all-reduces.
        device: That of the parameters.
    """

    def __init__(
        self,
        options: OverlapOptions,
        names: dict[nn.Parameter, str],
        group: ProcessGroup,
        device: torch.device,
    ) -> None:
        self._options, self._names, self._group = options, names, group
        self._chooses = options.leaves_a_choice and device.type == "cpu" and group.size() > 1
        self._backwards = 0
        self._meter: StepMeter | None = None
        self._buckets: list[_Bucket] = []

    @property
    def are_over(self) -> bool:
        """The next backward may reduce-scatter."""
        return self._backwards > (_MEASURED if self._chooses else 0)

    def begin_forward(self) -> None:
        """A forward with gradients begins."""
        if self._chooses and self._backwards:
            self._meter = self._meter or StepMeter()
            self._meter.begin_forward()

    def call(self, module: nn.Module) -> None:
        """``module`` begins its forward."""
        if self._meter is not None:
            self._meter.call(module)

    def end_forward(self) -> None:
        """The forward of the model has ended."""
        if self._meter is not None:
            self._meter.end_forward()

    def begin_step(self) -> None:
        """The optimizer begins its step."""
        if self._meter is not None:
            self._meter.begin_step()

    def end_step(self) -> None:
        """The optimizer has ended its step."""
        if self._meter is not None:
            self._meter.end_step()

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """All-reduce a bucket: what DDP's hook returns."""
        buffer = bucket.buffer()
        message = buffer.mul_(1.0 / self._group.size())

        def start() -> Any:
            return dist.all_reduce(message, group=self._group, async_op=True)

        is_apart = self._backwards % 2 == 1
        self._backwards += bucket.is_last()
        if self._meter is None:
            reduced: torch.futures.Future[Tensor] = (
                start().get_future().then(lambda future: future.value()[0])
            )
            return reduced
        if bucket.index() == 0:
            self._buckets = []
        future = self._meter.reduce(start, bucket.is_last(), is_apart)
        self._buckets.append(self._seen(bucket))
        return future

    def _seen(self, bucket: GradBucket) -> _Bucket:
        buffer = bucket.buffer()
        parameters: Sequence[Any] = bucket.parameters()
        begins = [int(g.storage_offset() - buffer.storage_offset()) for g in bucket.gradients()]
        order = sorted(range(len(begins)), key=begins.__getitem__)
        return _Bucket(
            names=tuple(self._names[parameters[i]] for i in order),
            begins=tuple(begins[i] for i in order),
            length=buffer.numel(),
            dtype=buffer.dtype,
        )

    def stop_measuring(self) -> None:
        """Reduce as DDP does from now on."""
        self._chooses, self._meter = False, None

    def choose(
        self, optimizer: torch.optim.Optimizer, needs: Needs, slices: SliceLengths
    ) -> tuple[Chosen, ForwardTimeline | None]:
        """The options, and how they were chosen if they were; a collective call."""
        if not self._chooses:
            return defaults(self._options), None
        meter = self._meter
        assert meter is not None
        meter.begin_forward()  # with it, the last step ends
        self.stop_measuring()
        # Here, because a rank that is ahead may not yet know how a sum under way will be made.
        buckets = [each.costs(slices.of(each.length, each.dtype)) for each in self._buckets]
        costs = meter.costs(
            buckets, needs.settle()[0], self._names, _small_step(optimizer), self._group
        )
        if costs is None:
            return defaults(self._options), None
        chosen = None
        if self._group.rank() == 0:
            chosen = choose(costs, self._options, self._group.size())
        kind = tuple[list[Candidate], list[Moments]]
        candidates, moments = broadcast(chosen, kind, self._group)
        best = candidates[0]
        timeline = ForwardTimeline(costs, tuple(candidates), tuple(moments))
        return Chosen(best.chunk_bytes, best.window, best.early), timeline


def _small_step(optimizer: torch.optim.Optimizer) -> float:
    """Seconds of a step on a few elements."""
    first = optimizer.param_groups[0]["params"][0]
    piece = nn.Parameter(torch.zeros(8, dtype=first.dtype))
    piece.grad = torch.zeros_like(piece)
    made = copy_over(optimizer, {0: piece})
    times = []
    for _ in range(_TRIES):
        begin = time.monotonic()
        made.step()
        times.append(time.monotonic() - begin)
    return min(times)
