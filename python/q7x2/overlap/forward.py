"""``AttachedForward``: DDP whose all-reduces are split around the optimizer's step.

    backward     | layer 3 | layer 2 | layer 1 |
    network      :    reduce-scatter 3   2   1 : all-gather 1   2   3
    optimizer                                  | steps on shards |
    next forward                               :     | layer 1 | layer 2 | layer 3 |

Each rank gets the mean gradient of its shard of each chunk, and steps on the shard alone. The new
weights are all-gathered while the next forward computes, in the order in which it needs them. A
module waits only for its own parameters.

DeAR (Zhang et al., ICDCS 2023) splits the all-reduce of DDP in this way; Centauri (Chen et al.,
ASPLOS 2024) also cuts collectives and orders them by what waits for them.

If the options are chosen, trials compare such steps with DDP's own (_core/overlap_trial.py). DDP's
need the whole state of the optimizer, so it is gathered when they begin, and divided when they end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from q7x2._core.collective_queue import CollectiveQueue
from q7x2._core.groups import group_like
from q7x2._core.option_checks import check_positive
from q7x2._core.overlap_trial import OverlapDecision, OverlapTrial, TimedSteps, may_try
from q7x2._core.renamed import renamed_attributes
from q7x2.overlap.buckets import Buckets
from q7x2.overlap.choice import defaults
from q7x2.overlap.chunk import Chunk, Named
from q7x2.overlap.early import EarlySteps, split_early
from q7x2.overlap.first import FirstSteps
from q7x2.overlap.gradient import ScatteredGradient
from q7x2.overlap.modules import ModuleHook, Needs, chunks_needed, register_reduction
from q7x2.overlap.norm import clip_shards
from q7x2.overlap.optimizer import elementwise_keys
from q7x2.overlap.options import OverlapOptions, OverlapStats
from q7x2.overlap.order import SliceLengths
from q7x2.overlap.timeline import ForwardTimeline, TimelineRecorder


@renamed_attributes(wait="flush")
class AttachedForward:
    """A DistributedDataParallel whose weights are gathered during forward; made by :func:`attach`.

    After ``optimizer.step()`` the new weights are on their way. Forwards, ``state_dict()`` and
    ``load_state_dict()`` of the model wait for them. Other code that reads parameters calls
    :meth:`flush` first.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        options: OverlapOptions,
        parameters: Sequence[Named],
    ) -> None:
        self._group, self._optimizer = ddp.process_group, optimizer
        self._names = {p: name for name, p in parameters}
        self._device = parameters[0][1].device
        elementwise = elementwise_keys(optimizer, self._device)
        register_reduction(ddp, self._reduce)
        # Reduce-scatters begin in the order of backward, all-gathers in that of forward: each needs
        # a group in which no other collective comes between.
        self._scatters = group_like(self._group, self._device)
        self._gathers = group_like(self._group, self._device)
        self._slices = SliceLengths(self._scatters, self._device)
        self._first = FirstSteps(options, self._names, self._scatters, self._device)
        self._options = defaults(options)
        self._timeline: ForwardTimeline | None = None
        self._recorder: TimelineRecorder | None = None  # while it has steps to record
        self._marks = {p: ScatteredGradient.of(p, self._unscale) for p in self._names}
        self._model = ddp.module
        self._needs: Needs | None = Needs(self._model)
        self._needed: dict[nn.Module, list[int]] = {}  # numbers of chunks in the order of forward
        lanes = (self._scatters, self._gathers)
        self._buckets = Buckets(self._names, optimizer, elementwise, lanes, self._slices)
        self._order: list[Chunk] = []  # that of forward; empty until all buckets are known
        self._queue = CollectiveQueue(self._options.window, self._note_gather)
        self._early = EarlySteps([], self._queue, optimizer)
        self._pending: set[int] = set()  # numbers of chunks whose all-gather has not landed
        self._may_shard = self._is_sharding = self._is_detached = False
        self._overlaps = True  # steps may be on shards
        self._timed: TimedSteps | None = None
        if may_try(not options.leaves_a_choice, self._device, self._group):
            self._timed = TimedSteps(OverlapTrial(self._scatters, "overlap with forward"))
        self._stats = OverlapStats()
        self._removable: list[Any] = []
        self._register_others(ddp)

    @property
    def stats(self) -> OverlapStats:
        """What it has done since it was attached."""
        return self._stats

    @property
    def timeline(self) -> ForwardTimeline | None:
        """How options that were None were chosen; None before that, and if none was."""
        timeline = self._timeline if self._recorder is None else self._recorder.timeline
        return None if timeline is None else replace(timeline, decisions=self.decisions)

    @property
    def decisions(self) -> tuple[OverlapDecision, ...]:
        """What trials have found, the last one in force. Empty if all options were given."""
        return () if self._timed is None else tuple(self._timed.trial.decisions)

    def _register_others(self, ddp: DistributedDataParallel) -> None:
        flush = ModuleHook(lambda _: self.flush())
        for module in self._model.modules():
            self._removable += [
                module.register_forward_pre_hook(ModuleHook(self._before_forward), prepend=True),
                module.register_state_dict_pre_hook(flush),
                module.register_load_state_dict_pre_hook(flush),
            ]
        self._removable += [
            ddp.register_forward_pre_hook(ModuleHook(self._before_ddp)),
            self._model.register_forward_hook(ModuleHook(self._after_forward)),
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(lambda *_: self._first.end_step()),
            self._optimizer.register_state_dict_pre_hook(self._gather_state),
            self._optimizer.register_state_dict_post_hook(self._forget_state),
            self._optimizer.register_load_state_dict_post_hook(self._scatter_state),
        ]

    # ---- forward ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all parameters have their new values.

        Raises:
            torch.distributed.DistBackendError: A rank died, or another failure of the group. Some
                parameters have their new values then, and others the old ones.
        """
        for number in sorted(self._pending):
            self._land(number)

    def _before_forward(self, module: nn.Module) -> None:
        if not torch.is_grad_enabled():
            self.flush()  # an evaluation may take other ways through the model
        elif self._needs is not None:
            self._needs.note(module)
            self._first.call(module)
        elif self._pending:
            for number in self._needed.get(module, ()):
                if number in self._pending:
                    self._land(number)

    def _before_ddp(self, _: nn.Module) -> None:
        """This is when DDP makes its buckets anew."""
        if not torch.is_grad_enabled():
            return
        if self._may_shard:
            if self._timed is not None and self._recorder is None:
                self._timed.begin_forward()
                if self._timed.trial.overlaps != self._overlaps:
                    self._change_way()
        elif self._first.are_over:
            self._may_shard = True
            assert self._needs is not None
            self._options, self._timeline = self._first.choose(
                self._optimizer, self._needs, self._slices
            )
            self._queue = CollectiveQueue(self._options.window, self._note_gather)
        else:
            self._first.begin_forward()

    def _change_way(self) -> None:
        """Between two steps. On all ranks the same: gathering the state is a collective call."""
        if self._overlaps:
            self.flush()
            self._gather_state(self._optimizer)
            self._overlaps = self._is_sharding = False
        else:
            self._overlaps = True
            self._scatter_state(self._optimizer)

    def _after_forward(self, _: nn.Module) -> None:
        self.flush()
        if not torch.is_grad_enabled():
            return
        if not self._may_shard:
            self._first.end_forward()
        if self._recorder is not None:
            self._recorder.end_forward()
            if self._recorder.is_done:
                self._timeline, self._recorder = self._recorder.timeline, None

    def _land(self, number: int) -> None:
        begin = time.monotonic()
        self._note("needed", number)
        self._queue.wait(number)
        self._note("gathered", number)  # its callback may be late
        self._count(forward_wait_seconds=time.monotonic() - begin)
        self._order[number].land()
        self._pending.discard(number)

    # ---- backward --------------------------------------------------------------------------------

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's hook. Returns at once; the bucket keeps this rank's own gradients."""
        if self._is_detached or not self._may_shard or not self._overlaps:
            return self._first.reduce(bucket)
        buffer, scale = bucket.buffer(), 1.0 / self._group.size()
        if bucket.index() == 0:
            self.flush()
            self._is_sharding = True
            self._early.begin()
            self._queue.begin([chunk.start_gather for chunk in self._order])
        for chunk in self._buckets.of(bucket, self._options.chunk_bytes):
            chunk.wait()  # of a backward whose gradients were dropped
            chunk.scatter(buffer, scale)
            if self._recorder is not None:
                self._recorder.follow(self._order.index(chunk), chunk)
            self._early.follow(chunk)
        if bucket.is_last():
            # DDP's own callback, which writes `p.grad`, is queued after this one.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._mark))
        devices: Any = None if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future

    def _mark(self) -> None:
        for p, mark in self._marks.items():
            p.grad = mark

    # ---- the step --------------------------------------------------------------------------------

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradients by their common norm; a collective call.

        It is ``torch.nn.utils.clip_grad_norm_`` for gradients that are scattered. Each rank has the
        norm of its shard, and one all-reduce of one number adds them up. So the norm may differ
        from that of torch in the last bits.

        Args:
            max_norm: The largest norm; gradients with a larger one are scaled down to it.
            norm_type: The type of the norm; ``inf`` is the largest magnitude.

        Returns:
            The norm before clipping, a tensor of no dimensions, the same on all ranks.

        Raises:
            ValueError: ``max_norm`` is not positive.
        """
        check_positive("max_norm", max_norm)
        self._early.check("clipping")
        if not self._has_scattered():
            # An empty tensor has no largest magnitude.
            whole = [p for p in self._names if p.numel()]
            norm: Tensor = torch.nn.utils.clip_grad_norm_(whole, max_norm, norm_type)
            return norm
        shards = [chunk.gradient for chunk in self._arrived() if chunk.gradient.numel()]
        return clip_shards(shards, max_norm, norm_type, self._scatters, self._device)

    def _unscale(self, found_inf: Tensor, inv_scale: Tensor) -> None:
        self._early.check("GradScaler")
        shards = [chunk.gradient for chunk in self._arrived() if chunk.gradient.numel()]
        if shards:
            torch._amp_foreach_non_finite_check_and_unscale_(shards, found_inf, inv_scale)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=self._scatters)

    def _arrived(self) -> list[Chunk]:
        begin = time.monotonic()
        chunks = self._buckets.chunks
        for chunk in chunks:
            chunk.wait()
        self._count(step_wait_seconds=time.monotonic() - begin)
        return chunks

    def _has_scattered(self) -> bool:
        """Whether there are scattered gradients.

        Raises RuntimeError if some gradients are scattered, and others are not.
        """
        if not self._is_sharding or all(p.grad is None for p in self._marks):
            return False
        if any(p.grad is not mark for p, mark in self._marks.items()):
            raise RuntimeError(
                "some gradients have not been reduced: the last backward before a step must run "
                "outside of no_sync, and zero_grad must clear the gradients of all parameters"
            )
        return True

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Step on the shards. The optimizer's own step then finds no gradients."""
        if len(args) > 1 or kwargs.get("closure") is not None:
            raise RuntimeError("forward overlap takes no closure in optimizer.step")
        if self._timed is not None:
            self._timed.end_step()
        if self._is_detached or not self._has_scattered():
            self._first.begin_step()
            return
        if not self._order:
            self._settle()
            self._queue.begin([chunk.start_gather for chunk in self._order])
        begin = time.monotonic()
        stepped = self._early.end()
        waited = time.monotonic() - begin
        self._pending.update(range(stepped))
        for number, chunk in list(enumerate(self._order))[stepped:]:
            begin = time.monotonic()
            chunk.wait()
            self._note("scattered", number)
            waited += time.monotonic() - begin
            chunk.step(optimizer)
            self._pending.add(number)
            self._queue.set_ready(number)
        for p in self._marks:
            p.grad = None
        self._count(steps=1, step_wait_seconds=waited)

    def _settle(self) -> None:
        """All buckets are known: put the chunks into the order in which forward needs them."""
        assert self._needs is not None
        needs, first = self._needs.settle()
        self._needs = None
        # Rank 0's order, because ranks may have taken different ways through their model.
        moments = torch.tensor([first[p] for p in self._names], device=self._device)
        dist.broadcast(moments, group=self._scatters, group_src=0)
        moment_of = dict(zip(self._names, moments.tolist(), strict=True))
        chunks = self._buckets.chunks
        needed = {c: min(moment_of[p] for _, p in c.parameters.values()) for c in chunks}
        early, late = split_early(chunks, needed.__getitem__, self._options.early)
        self._order = [*early, *late]
        self._early = EarlySteps(early, self._queue, self._optimizer)
        self._needed = chunks_needed(
            needs, [[p for _, p in chunk.parameters.values()] for chunk in self._order]
        )
        self._forget_state(self._optimizer)
        self._count(chunks=len(chunks))
        if self._timeline is not None:
            self._recorder = TimelineRecorder(self._timeline, len(chunks))

    # ---- state -----------------------------------------------------------------------------------

    def _gather_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the optimizer's state_dict: it has the whole state, on all ranks."""
        if not self._overlaps:
            return
        self._early.check("state_dict")
        for chunk in self._order:
            chunk.give_state(optimizer.state.__getitem__)

    def _forget_state(self, optimizer: torch.optim.Optimizer, _: Any = None) -> None:
        """The whole state is not kept beside that of the shards."""
        if self._order and self._overlaps:
            for p in self._names:
                optimizer.state.pop(p, None)

    def _scatter_state(self, optimizer: torch.optim.Optimizer) -> None:
        """After the optimizer's load_state_dict: each rank keeps its part."""
        if not self._overlaps:
            return
        self._early.check("load_state_dict")
        for chunk in self._buckets.chunks:
            chunk.take_state(optimizer)
        self._forget_state(optimizer)

    def detach(self) -> None:
        """Train as DDP without overlap from now on; a collective call. DDP keeps its hook.

        The optimizer gets its whole state back. Gradients that it has not used are dropped.
        """
        if self._is_detached:
            return
        self._early.check("detach")
        self.flush()
        self._arrived()
        self._gather_state(self._optimizer)
        self._is_detached = True
        self._first.stop_measuring()
        for p, mark in self._marks.items():
            if p.grad is mark:
                p.grad = None
        while self._removable:
            self._removable.pop().remove()
        self._buckets.clear()
        self._order = []

    def _note_gather(self, what: str, number: int) -> None:
        self._note("stepped" if what == "ready" else "gathered", number)

    def _note(self, moment: str, number: int) -> None:
        if self._recorder is not None:
            self._recorder.note(moment, number)

    def _count(self, **more: float) -> None:
        stats = self._stats
        self._stats = replace(stats, **{k: getattr(stats, k) + v for k, v in more.items()})
