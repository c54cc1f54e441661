"""Policies on an FSDP2 model: what they decide goes to its reductions, and facts come back.

At the end of each backward all ranks add up one small message: whether gradients were finite, and
on steps that are measured one row per parameter. Each rank then has the facts of all, so all
decide alike before the next forward, without another message.

A policy knows two kinds of parameters: those of the model, whose gradients are reduce-scattered,
and, with replicas, one vector per FSDP module, ``replicas:NAME``, which the hook between replicas
reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from q7x2._core.random_keys import key_of
from q7x2._core.runner import GradientSums
from q7x2.fsdp.facts import FactTable, WireClock, ranks_in, summed
from q7x2.fsdp.group_policy import GroupPolicy, check_compressor, check_rows, combined

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._C import HookRunner
    from q7x2._core.runner import Row, StepFacts
    from q7x2.fsdp.layout import Layout
    from q7x2.fsdp.options import Sharded
    from q7x2.fsdp.scatter import Scatter

_Named = list[tuple[str, torch.Tensor]]


class Steering:
    """What policies have decided for a model, and what they are told.

    Args:
        options: The hook's.
        sharded: The parameters whose gradients are reduce-scattered, as tensors without memory.
        reduced: What the hook between replicas reduces, in its order.
        replicas: The runner of that hook; None: policies do not steer it.
        groups: The process group of the shards, and that of the replicas, if there are any.
        device: Where the tensors of the groups' collectives must be.
    """

    def __init__(
        self,
        options: Sharded,
        sharded: _Named,
        reduced: _Named,
        replicas: HookRunner | None,
        groups: Sequence[ProcessGroup],
        device: torch.device,
    ) -> None:
        self.parameters: _Named = [
            *sharded,
            *((f"replicas:{name}", tensor) for name, tensor in reduced),
        ]
        self.clock = WireClock()
        self.scale: Callable[[], float] = lambda: 1.0  # the loss scale
        self._options = options
        self._numbers = {name: number for number, (name, _) in enumerate(sharded)}
        self._replicas, self._groups, self._device = replicas, groups, device
        self._is_first_replica = len(groups) == 1 or groups[1].rank() == 0
        self._scatters: list[Scatter] = []
        self._measures = False
        self._candidates: list[str] = []
        self._table: FactTable | None = None  # that of the current step
        self._facts: StepFacts | None = None  # those of the last step

    def follow(self, scatter: Scatter) -> None:
        """Policies decide about this reduce-scatter, and measure it."""
        self._scatters.append(scatter)
        scatter.measure = self._measure

    def decide(self, rows: Sequence[Row], measures: bool, candidates: Sequence[str]) -> None:
        """What a hook's runner is told; ValueError if a part of it is not possible."""
        count = len(self._numbers)
        check_rows(rows[:count], self._options.use_error_feedback)
        if count:
            for name in candidates:
                check_compressor(name)
        policies = [self._policy(scatter, rows) for scatter in self._scatters]
        if self._replicas is not None:
            self._replicas.decide(list(rows[count:]), measures, list(candidates))
        for scatter, policy in zip(self._scatters, policies, strict=True):
            scatter.policy = policy
        self._measures, self._candidates = measures, list(candidates)

    def _policy(self, scatter: Scatter, rows: Sequence[Row]) -> GroupPolicy:
        names = [piece.name for piece in scatter.layout.pieces if piece.is_coded]
        return combined([rows[self._numbers[name]] for name in names], self._options.gradients)

    def _measure(
        self, layout: Layout, coded: torch.Tensor, residual: torch.Tensor | None, step: int
    ) -> None:
        """Called by a reduce-scatter before it begins."""
        if not self._measures:
            return
        table = self._step_table()
        residuals = None if residual is None else layout.coded_views(residual)
        for i, (name, gradient) in enumerate(layout.coded_views(coded)):
            number = self._numbers[name]
            key = key_of(self._options.random_seed, step, number)
            table.measure(number, gradient, None if residuals is None else residuals[i][1], key)

    def _step_table(self) -> FactTable:
        if self._table is None:
            self._table = FactTable(len(self.parameters), self._candidates, self.scale())
        return self._table

    def end_step(self, step: int, is_finite: bool) -> bool:
        """A collective call of all ranks. Whether all their gradients were finite."""
        raw = None if self._replicas is None else self._replicas.take_facts()
        if raw is not None:
            is_finite = is_finite and raw["is_finite"]
            self._add_replicas(raw["gradients"])
        values = torch.tensor([float(not is_finite), *self.clock.last], dtype=torch.float64)
        table = self._step_table() if self._measures else None
        if table is not None:
            values = torch.cat([values, table.rows.view(-1)])
        sums = summed(values, self._groups, self._device)
        ranks = ranks_in(self._groups)
        gradients: dict[int, tuple[float, float, float, Sequence[float]]] = {}
        if table is not None:
            rows = sums[3:].view_as(table.rows).tolist()
            for n in sorted(table.seen):
                gradient, residual, uses, *errors = rows[n]
                gradients[n] = GradientSums(gradient, residual, uses, errors)
        self._table = None
        self._facts = {
            "step": step,
            "is_finite": sums[0].item() == 0,
            "step_seconds": sums[1].item() / ranks if self._measures else 0.0,
            "wire_seconds": sums[2].item() / ranks if self._measures else 0.0,
            "gradients": gradients,
        }
        return sums[0].item() == 0

    def _add_replicas(self, gradients: dict[int, Any]) -> None:
        """Their facts are sums over the replicas already, so one replica tells them."""
        if not self._measures:
            return
        for number, sums in gradients.items():
            position = len(self._numbers) + number
            self._step_table().seen.add(position)
            if self._is_first_replica:
                self._step_table().add(position, *GradientSums(*sums))

    def drop_step(self) -> None:
        """The step has failed, or the state is another one: nothing is known of it."""
        self._table = self._facts = None

    def take_facts(self) -> StepFacts | None:
        """Return the facts of the last step; None if they were returned before."""
        facts, self._facts = self._facts, None
        return facts

    def mean(self, value: float) -> float:
        """Over all ranks; a collective call."""
        total = summed(torch.tensor([value], dtype=torch.float64), self._groups, self._device)
        return float(total.item()) / ranks_in(self._groups)
