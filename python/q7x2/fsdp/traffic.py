"""The compressed traffic of one FSDP2 model: its parts, its figures and its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2.fsdp.gather import Counts, DifferenceGather, Gather
from q7x2.fsdp.reductions import Reductions
from q7x2.fsdp.torch_internals import prefetch_forward

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._C import HookRunner
    from q7x2._core.runner import HookTensors, Row, StepFacts
    from q7x2.fsdp.scatter import Residual, Scatter
    from q7x2.fsdp.steering import Steering

# Kinds of state. What each rank has for itself:
_RESIDUAL = "gradient_residual"
# And what all ranks share:
_WEIGHTS = "gathered_weights"
_SENDS_NEXT = "sends_next"


def without_weights(shared: HookTensors) -> HookTensors:
    """The same state, but of a model whose weights were never gathered."""
    return {kind: shared[kind] for kind in shared if kind not in (_WEIGHTS, _SENDS_NEXT)}


@dataclass
class Part:
    """One param group at work.

    Attributes:
        name: That of its module.
        names: Those of its parameters.
        residual: None if its gradients are not compressed.
        scatter: None if one rank holds all of it.
        restore: Gives the param group FSDP's own collectives back.
    """

    name: str
    names: Sequence[str]
    gather: Gather
    residual: Residual | None = None
    scatter: Scatter | None = None
    restore: Callable[[], None] = lambda: None


class Traffic:
    """What :class:`Attached` takes for a runner, over the parts of a model.

    Args:
        replicas: The runner of the hook that averages shards over replicas; None: there are none.
        process_groups: Over which gradients are reduced; they agree on whether a step is skipped.
        device: That of the model.
        may_skip: A gradient scaler skips steps.
        steering: Applies policies; None: there are none.
    """

    def __init__(
        self,
        replicas: HookRunner | None,
        process_groups: Sequence[ProcessGroup],
        device: torch.device,
        may_skip: bool,
        steering: Steering | None = None,
    ) -> None:
        self.steering = steering
        self.reductions = Reductions(
            replicas,
            self._end_step,
            self._fail,
            checks_finite=may_skip or steering is not None,
            clock=None if steering is None else steering.clock,
        )
        self.counts = Counts()
        self.parts: list[Part] = []
        self._replicas = replicas
        self._process_groups, self.may_skip = process_groups, may_skip
        self._device = device
        self._skipped = 0
        self._order: list[Any] | None = []  # modules in the first forward; None: it is over
        self._is_detached = False

    def before_forward(self, module: Any) -> None:
        """A module's weights are gathered for its forward."""
        self.reductions.leave_unfinished()
        if self._order is not None and all(module is not other for other in self._order):
            self._order.append(module)

    def _end_step(self, is_finite: bool) -> None:
        if self.steering is not None:
            is_finite = self.steering.end_step(self.reductions.step, is_finite)
        elif self.may_skip:
            is_finite = self._agree(is_finite)
        if self.may_skip and not is_finite:
            self._skipped += 1
            self._for_residuals(lambda residual: residual.abort(is_failure=False))
        else:
            self._for_residuals(lambda residual: residual.commit())
        if self._order:
            prefetch_forward(self._order)
            self._order = None

    def _agree(self, is_finite: bool) -> bool:
        """Whether the gradients of all ranks are finite."""
        flag = torch.tensor([float(is_finite)], device=self._device)
        for group in self._process_groups:
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
        return bool(flag.item())

    def _fail(self) -> None:
        if self.steering is not None:
            self.steering.drop_step()
        self._for_residuals(lambda residual: residual.abort(is_failure=True))

    def _for_residuals(self, call: Callable[[Residual], None]) -> None:
        for part in self.parts:
            if part.residual is not None:
                call(part.residual)

    def decide(self, rows: Sequence[Row], measures: bool, candidates: Sequence[str]) -> None:
        """What policies want from the next reduction on."""
        self._check_between_steps()
        assert self.steering is not None
        self.steering.decide(rows, measures, candidates)

    def take_facts(self) -> StepFacts | None:
        assert self.steering is not None
        return self.steering.take_facts()

    def refresh(self) -> None:
        for part in self.parts:
            if isinstance(part.gather, DifferenceGather):
                part.gather.refresh()

    @property
    def step(self) -> int:
        return self.reductions.step

    def stats(self) -> dict[str, Any]:
        of_replicas = self._replicas.stats() if self._replicas is not None else {}
        scatters = [part.scatter for part in self.parts if part.scatter is not None]
        return {
            "steps": self.reductions.step,
            "skipped_steps": self._skipped,
            "buckets": self.reductions.buckets,
            "gradient_bytes": sum(scatter.gradient_bytes for scatter in scatters)
            + of_replicas.get("gradient_bytes", 0),
            "message_bytes": sum(scatter.message_bytes for scatter in scatters)
            + of_replicas.get("message_bytes", 0),
            "cpu_seconds": of_replicas.get("cpu_seconds", {}),
            **vars(self.counts),
        }

    def trace(self, enabled: bool) -> None:
        """Only the hook between replicas records events."""
        if self._replicas is not None:
            self._replicas.trace(enabled)

    def take_events(self) -> list[dict[str, Any]]:
        return [] if self._replicas is None else self._replicas.take_events()

    def rescale(self, factor: float) -> None:
        self._for_residuals(lambda residual: residual.rescale(factor))
        if self._replicas is not None:
            self._replicas.rescale(factor)

    def detach(self) -> None:
        if self._is_detached:
            return
        self._check_between_steps()
        self._is_detached = True
        for part in self.parts:
            part.restore()
        if self._replicas is not None:
            self._replicas.detach()

    def save(self) -> tuple[HookTensors, HookTensors, int]:
        self._check_between_steps()
        shared: HookTensors = {}
        local: HookTensors = {}
        if self._replicas is not None:
            shared, local, _ = self._replicas.save()
        for part in self.parts:
            if part.residual is not None and (kept := part.residual.save()):
                local.setdefault(_RESIDUAL, {}).update(kept)
            if isinstance(part.gather, DifferenceGather):
                held, sends_next = part.gather.save()
                shared.setdefault(_WEIGHTS, {}).update(held)
                shared.setdefault(_SENDS_NEXT, {})[part.name] = torch.tensor([sends_next])
        return shared, local, self.reductions.step

    def load(self, shared: HookTensors, local: HookTensors, step: int) -> None:
        self._check_between_steps()
        if self.steering is not None:
            self.steering.drop_step()
        ours = {_RESIDUAL, _WEIGHTS, _SENDS_NEXT}
        if self._replicas is not None:
            self._replicas.load(
                {kind: shared[kind] for kind in shared if kind not in ours},
                {kind: local[kind] for kind in local if kind not in ours},
                step,
            )
        for part in self.parts:
            if part.residual is not None:
                part.residual.load(local.get(_RESIDUAL, {}))
            if isinstance(part.gather, DifferenceGather):
                weights = shared.get(_WEIGHTS, {})
                held = {name: weights[name] for name in part.names if name in weights}
                sends_next = shared.get(_SENDS_NEXT, {}).get(part.name)
                part.gather.load(held, sends_next is None or bool(sends_next))
        self.reductions.step = step

    def _check_between_steps(self) -> None:
        self.reductions.leave_unfinished()
        if self.reductions.is_under_way:
            raise RuntimeError("the state of a hook can be read and changed between steps only")
