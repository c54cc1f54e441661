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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from q7x2._core.ending import Ending
from q7x2._core.groups import group_like
from q7x2._core.option_checks import check_positive
from q7x2._core.overlap_trial import OverlapDecision, OverlapTrial, TimedSteps, may_try
from q7x2._core.renamed import renamed_attributes
from q7x2.overlap.buckets import Buckets
from q7x2.overlap.choice import defaults
from q7x2.overlap.chunk import Named
from q7x2.overlap.early import EarlySteps, split_early
from q7x2.overlap.first import FirstSteps
from q7x2.overlap.gathers import Gathers
from q7x2.overlap.modules import ModuleHook, Needs, register_reduction
from q7x2.overlap.optimizer import elementwise_keys
from q7x2.overlap.options import OverlapOptions, OverlapStats
from q7x2.overlap.order import SliceLengths
from q7x2.overlap.record import Record
from q7x2.overlap.scattered import ScatteredGradients
from q7x2.overlap.timeline import ForwardTimeline


@renamed_attributes(wait="flush", detach="finish")
class AttachedForward(Ending):
    """A DistributedDataParallel whose weights are gathered during forward; made by :func:`attach`.

    After ``optimizer.step()`` the new weights are on their way. Forwards, ``state_dict()`` and
    ``load_state_dict()`` of the model wait for them. Other code that reads parameters calls
    :meth:`flush` first. As a context manager it ends by :meth:`finish`.
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
        lanes = (self._scatters, group_like(self._group, self._device))
        self._slices = SliceLengths(self._scatters, self._device)
        self._first = FirstSteps(options, self._names, self._scatters, self._device)
        self._options = defaults(options)
        self._model = ddp.module
        self._needs: Needs | None = Needs(self._model)
        self._record = Record()
        self._buckets = Buckets(self._names, optimizer, elementwise, lanes, self._slices)
        self._gathers = Gathers(self._options.window, self._record)
        self._early = EarlySteps([], self._gathers.queue, optimizer)
        self._gradients = ScatteredGradients(
            self._names, self._buckets, self._scatters, self._record, self._check_early
        )
        self._may_shard = self._is_sharding = self._is_finished = False
        self._overlaps = True  # steps may be on shards
        self._timed: TimedSteps | None = None
        if may_try(not options.leaves_a_choice, self._device, self._group):
            self._timed = TimedSteps(OverlapTrial(self._scatters, "overlap with forward"))
        self._removable: list[Any] = []
        self._register_others(ddp)

    @property
    def stats(self) -> OverlapStats:
        """What it has done since it was attached."""
        return self._record.stats

    @property
    def timeline(self) -> ForwardTimeline | None:
        """How options that were None were chosen; None before that, and if none was."""
        timeline = self._record.timeline
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
        self._gathers.land_all()

    def _before_forward(self, module: nn.Module) -> None:
        if not torch.is_grad_enabled():
            self.flush()  # an evaluation may take other ways through the model
        elif self._needs is not None:
            self._needs.note(module)
            self._first.call(module)
        else:
            self._gathers.land_needed(module)

    def _before_ddp(self, _: nn.Module) -> None:
        """This is when DDP makes its buckets anew."""
        if not torch.is_grad_enabled():
            return
        if self._may_shard:
            if self._timed is not None and not self._record.is_recording:
                self._timed.begin_forward()
                if self._timed.trial.overlaps != self._overlaps:
                    self._change_way()
        elif self._first.are_over:
            self._may_shard = True
            assert self._needs is not None
            self._options, timeline = self._first.choose(self._optimizer, self._needs, self._slices)
            self._record.predict(timeline)
            self._gathers = Gathers(self._options.window, self._record)
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
        self._record.end_forward()

    # ---- backward --------------------------------------------------------------------------------

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's hook. Returns at once; the bucket keeps this rank's own gradients."""
        if self._is_finished or not self._may_shard or not self._overlaps:
            return self._first.reduce(bucket)
        buffer, scale = bucket.buffer(), 1.0 / self._group.size()
        if bucket.index() == 0:
            self.flush()
            self._is_sharding = True
            self._early.begin()
            self._gathers.begin()
        for chunk in self._buckets.of(bucket, self._options.chunk_bytes):
            chunk.wait()  # from a backward whose gradients were dropped
            chunk.scatter(buffer, scale)
            if self._record.is_recording:
                self._record.follow(self._gathers.chunks.index(chunk), chunk)
            self._early.follow(chunk)
        if bucket.is_last():
            # DDP's own callback, which writes `p.grad`, is queued after this one.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._gradients.mark))
        devices: Any = None if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future

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
        self._check_early("clipping")
        if self._has_scattered():
            return self._gradients.clip(max_norm, norm_type)
        # An empty tensor has no largest magnitude.
        whole = [p for p in self._names if p.numel()]
        norm: Tensor = torch.nn.utils.clip_grad_norm_(whole, max_norm, norm_type)
        return norm

    def _check_early(self, what: str) -> None:
        self._early.check(what)

    def _has_scattered(self) -> bool:
        return self._is_sharding and self._gradients.are_scattered()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Step on the shards. The optimizer's own step then finds no gradients."""
        if len(args) > 1 or kwargs.get("closure") is not None:
            raise RuntimeError("forward overlap takes no closure in optimizer.step")
        if self._timed is not None:
            self._timed.end_step()
        if self._is_finished or not self._has_scattered():
            self._first.begin_step()
            return
        gathers, record = self._gathers, self._record
        if not gathers.chunks:
            self._settle()
            gathers.begin()
        with record.waiting("step_wait_seconds"):
            stepped = self._early.end()
        for number, chunk in enumerate(gathers.chunks):
            gathers.expect(number)
            if number < stepped:
                continue
            with record.waiting("step_wait_seconds"):
                chunk.wait()
                record.note("scattered", number)
            chunk.step(optimizer)
            gathers.queue.set_ready(number)
        self._gradients.clear()
        record.count(steps=1)

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
        self._gathers.settle([*early, *late], needs)
        self._early = EarlySteps(early, self._gathers.queue, self._optimizer)
        self._forget_state(self._optimizer)
        self._record.begin(len(chunks))

    # ---- state -----------------------------------------------------------------------------------

    def _gather_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the optimizer's state_dict: it has the whole state, on all ranks."""
        if not self._overlaps:
            return
        self._check_early("state_dict")
        for chunk in self._gathers.chunks:
            chunk.give_state(optimizer.state.__getitem__)

    def _forget_state(self, optimizer: torch.optim.Optimizer, _: Any = None) -> None:
        """The whole state is not kept beside that of the shards."""
        if self._gathers.chunks and self._overlaps:
            for p in self._names:
                optimizer.state.pop(p, None)

    def _scatter_state(self, optimizer: torch.optim.Optimizer) -> None:
        """After the optimizer's load_state_dict: each rank keeps its part."""
        if not self._overlaps:
            return
        self._check_early("load_state_dict")
        for chunk in self._buckets.chunks:
            chunk.take_state(optimizer)
        self._forget_state(optimizer)

    def finish(self) -> None:
        """Train as DDP without overlap from now on; a collective call. DDP keeps its hook.

        All parameters have their new values, and the optimizer its whole state. Gradients that it
        has not used are dropped.
        """
        if self._is_finished:
            return
        self._check_early("finish")
        self.flush()
        self._gradients.arrived()
        self._gather_state(self._optimizer)
        self._is_finished = True
        self._first.stop_measuring()
        self._gradients.clear()
        while self._removable:
            self._removable.pop().remove()
        self._buckets.clear()
        self._gathers.clear()
