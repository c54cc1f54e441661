"""Gradients of an FSDP2 model on their way: reductions that backward does not wait for.

FSDP expects that a reduce-scatter is complete, in the order of streams, when it returns. On CPUs
there are no streams. So its output is zeros, which FSDP gives to the parameters' gradients (adds,
if these accumulate), and the sum is added at the end of backward::

    post-backward of module 2   reduce-scatter 2 starts, FSDP goes on with zeros
    post-backward of module 1   reduce-scatter 1 starts; is 2 complete? its all-reduce starts
    end of backward             wait for all of them in order; gradients += sums

All ranks start collectives in the same order, whichever are complete first: the all-reduces of
replicas have process groups of their own, and start in the order of the reduce-scatters.

Gradients that somebody reads or changes before the end of backward cannot be late:
`_fsdp_torch.takes_late_gradients`. For those the reduction is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from q7x2._core.backward import at_end_of_backward, is_backward_running
from q7x2.fsdp.messages import Sum
from q7x2.fsdp.torch_internals import takes_late_gradients

if TYPE_CHECKING:
    from q7x2._C import HookRunner
    from q7x2.fsdp.facts import WireClock


@dataclass
class _Entry:
    """One reduction; ``sum`` until its all-reduce starts, if it has one.

    Attributes:
        unnoticed: Its collectives whose end the clock does not notice by itself.
    """

    member: Member
    sum: Sum
    dtype: torch.dtype
    needs_replicas: bool = False
    row: torch.Tensor | None = None
    future: Any = None
    unnoticed: int = 0


class Reductions:
    """All reductions of a model.

    Args:
        replicas: The hook that averages shards over replicas; None: there are none.
        after_step: Is told, at the end of each backward, whether this rank's gradients are finite,
            and may raise.
        after_failure: A backward failed, or was left before its end.
        checks_finite: Else gradients are taken to be finite.
        clock: Measures steps and collectives; None: nobody asks.
    """

    def __init__(
        self,
        replicas: HookRunner | None,
        after_step: Callable[[bool], None],
        after_failure: Callable[[], None],
        checks_finite: bool,
        clock: WireClock | None = None,
    ) -> None:
        self._replicas, self._checks_finite = replicas, checks_finite
        self._after_step, self._after_failure = after_step, after_failure
        self._clock = clock
        self._queue: list[_Entry] = []
        self._is_armed = False
        self._is_first = True  # the next all-reduce is the step's first
        self._is_finite = True
        self.step = 0
        self.buckets = 0

    @property
    def has_replicas(self) -> bool:
        return self._replicas is not None

    @property
    def is_under_way(self) -> bool:
        return self._is_armed

    def leave_unfinished(self) -> None:
        """Outside of backward nothing is under way: what is left is of one that raised."""
        if self._is_armed and not is_backward_running():
            self._fail()

    def add(self, entry: _Entry) -> None:
        self._arm()
        if self._clock is not None:
            entry.unnoticed = sum(not self._clock.watch(work) for work in entry.sum.works)
        self._queue.append(entry)

    def finish_now(self, entry: _Entry) -> torch.Tensor:
        """For gradients that cannot be late; what came before comes first.

        Outside of a backward (torch 2.15 can finish one later) it is a step of its own.
        """
        self.add(entry)
        try:
            self._land_all(is_last_late=False)
        except BaseException:
            self._fail()
            raise
        if not is_backward_running():
            self._end()
        assert entry.row is not None
        return entry.row

    def advance(self) -> None:
        """Start the all-reduces of sums that are complete, in order."""
        for entry in self._queue:
            if entry.row is None:
                if not entry.sum.is_done():
                    return
                self._start_replicas(entry)

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            if self._clock is not None:
                self._clock.begin_step()
            if is_backward_running():
                at_end_of_backward(self._end)

    def _notice_end(self, entry: _Entry) -> None:
        if self._clock is not None:
            for _ in range(entry.unnoticed):
                self._clock.end()
            entry.unnoticed = 0

    def _start_replicas(self, entry: _Entry) -> None:
        entry.row = entry.sum.wait()
        self._notice_end(entry)
        if self._replicas is not None and entry.needs_replicas:
            entry.row = entry.row.to(entry.dtype)
            entry.future = self._replicas.reduce_bucket(
                entry.member.index, [entry.member.index], entry.row, self._is_first
            )
            if self._clock is not None:
                self._clock.watch(entry.future)
            self._is_first = False

    def _land_all(self, is_last_late: bool = True) -> None:
        for entry in self._queue:
            if entry.row is None:
                self._start_replicas(entry)
        while self._queue:
            entry = self._queue[0]
            if entry.future is not None:
                entry.future.wait()
            assert entry.row is not None
            if self._checks_finite:
                self._is_finite = self._is_finite and bool(entry.row.isfinite().all())
            if is_last_late or len(self._queue) > 1:
                entry.member.land(entry.row)
            self._queue.pop(0)
            self.buckets += 1

    def _end(self) -> None:
        if not self._is_armed:
            return
        try:
            with torch.no_grad():
                self._land_all()
                if self._replicas is not None and not self._is_first:
                    self._replicas.end_reductions()
                self._after_step(self._is_finite)
        except BaseException:
            self._fail()
            raise
        self._is_armed, self._is_first, self._is_finite = False, True, True
        self.step += 1

    def _fail(self) -> None:
        for entry in self._queue:
            self._notice_end(entry)
        self._queue.clear()
        self._is_armed, self._is_first, self._is_finite = False, True, True
        self._after_failure()


class Member:
    """One param group's part in the reductions.

    Args:
        index: Number of its shards in the replicas' hook.
        group: FSDP's.
        pieces: Its trainable parameters, in FSDP's order.
    """

    def __init__(self, reductions: Reductions, name: str, index: int, group: Any) -> None:
        self.name, self.index, self.group = name, index, group
        self.trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
        self.count = 0  # number of its reductions
        self._reductions = reductions
        self._numels = [p.padded_sharded_param_size.numel() for p in self.trained]

    @property
    def step(self) -> int:
        return self._reductions.step

    def reduce(self, output: torch.Tensor, sum_: Sum) -> None:
        """A reduce-scatter was started; ``output`` is what FSDP goes on with."""
        self.count += 1
        entry = _Entry(self, sum_, output.dtype, needs_replicas=self._reductions.has_replicas)
        if is_backward_running() and takes_late_gradients(self.group, output.dtype):
            self._reductions.add(entry)
            output.zero_()
        else:
            output.copy_(self._reductions.finish_now(entry))
        self._reductions.advance()

    def reduce_alone(self, gradient: torch.Tensor) -> None:
        """FSDP's all-reduce hook, of a param group that one rank holds whole: nothing is
        scattered."""
        if gradient.numel() != sum(self._numels):
            raise RuntimeError(
                f"FSDP module {self.name!r}: some of its parameters got no gradient in this "
                f"backward: expected all or none of them, {sum(self._numels)} elements, got "
                f"{gradient.numel()}"
            )
        row = gradient.clone()
        self.reduce(gradient, Sum([], lambda: row, 0))

    @torch.no_grad()
    def land(self, row: torch.Tensor) -> None:
        """Add the sum to the gradients."""
        gradients, parts, start = [], [], 0
        for parameter, numel in zip(self.trained, self._numels, strict=True):
            gradient = parameter.sharded_param.grad.to_local()
            part = row[start : start + gradient.numel()].view(gradient.shape)
            gradients.append(gradient)
            parts.append(part.to(gradient.device, gradient.dtype))
            start += numel
        torch._foreach_add_(gradients, parts)
