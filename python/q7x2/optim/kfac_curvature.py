"""The factors and inverses of K-FAC's layers, and how a step changes them.

A step makes a copy of the state, changes the copy, and gives it back whole. So a step that fails
has changed nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from q7x2.optim.kfac_exchange import (
    Factors,
    Inversion,
    exchange_inverses,
    from_rank_0,
    mean_factors,
)
from q7x2.optim.kfac_layer import Layer

_SIDES = ("input", "output")
MATRICES = tuple(f"{side}_{kind}" for side in _SIDES for kind in ("factor", "inverse", "inverted"))
"""Matrices in the state of a layer's weight, always float32: a factor, its inverse, and the factor
as it was when it was inverted."""

State = dict[str, Any]


@dataclass(frozen=True)
class Curvature:
    """What all steps have in common; see :class:`KFAC`."""

    layers: Sequence[Layer]
    device: torch.device
    factor_decay: float
    tolerance: float


class Update:
    """What one step changes.

    Args:
        states: Those of the layers' weights, by layer; they are not changed.

    Attributes:
        states: The states after the step.
        counts: What is added to the fields of :class:`KFACStats`.
    """

    def __init__(self, curvature: Curvature, states: Sequence[State], group: ProcessGroup) -> None:
        self._c, self._group = curvature, group
        self.states = [dict(state) for state in states]
        self.counts: Counter[str] = Counter()

    def factors(self, loss_scale: float) -> None:
        """Take the means of all ranks' statistics into the factors; a collective call.

        Raises FloatingPointError, on all ranks alike, if one has Inf or NaN.
        """
        layers = self._c.layers
        mine = [layer.factors(loss_scale) for layer in layers]
        means, count = mean_factors(
            mine, [layer.dims for layer in layers], self._c.device, self._group
        )
        self.counts["factor_bytes"] += count
        for layer, state, factors in zip(layers, self.states, means, strict=True):
            if factors is not None:
                self._take(layer, state, factors)

    def inverses(self, dampings: Sequence[float], is_due: bool) -> None:
        """Make and share inverses: all if ``is_due``, else those missing; a collective call.

        An inverse that is due is kept if its factor has changed by no more than the tolerance.
        Raises FloatingPointError, on all ranks alike, if a factor cannot be inverted.

        Args:
            dampings: By layer.
        """
        chosen = self._chosen(is_due)
        if not chosen:
            return
        due = [
            Inversion(
                len(self.states[index][f"{side}_factor"]),
                partial(_inverse, self.states[index], side, dampings[index]),
            )
            for index, side in chosen
        ]
        inverses, count = exchange_inverses(due, self._c.device, self._group)
        self.counts["inverse_bytes"] += count
        self.counts["inverses"] += len(chosen)
        for (index, side), inverse in zip(chosen, inverses, strict=True):
            if not torch.isfinite(inverse).all():
                raise FloatingPointError(
                    f"the {side} factor of layer {self._c.layers[index].name!r} cannot be inverted "
                    f"with damping {dampings[index]}; the step is not taken"
                )
            state = self.states[index]
            state[f"{side}_inverse"] = inverse
            if self._c.tolerance:
                state[f"{side}_inverted"] = state[f"{side}_factor"].clone()

    def _take(self, layer: Layer, state: State, factors: Factors) -> None:
        updates = state.get("factor_updates", 0) + 1
        state["factor_updates"] = updates
        kept = min(1 - 1 / updates, self._c.factor_decay)
        for side, factor in zip(_SIDES, factors, strict=True):
            if not torch.isfinite(factor).all():
                raise FloatingPointError(
                    f"the {side} factor of layer {layer.name!r} has Inf or NaN on some rank; the "
                    f"step is not taken"
                )
            name = f"{side}_factor"
            state[name] = torch.lerp(factor, state[name], kept) if name in state else factor

    def _chosen(self, is_due: bool) -> list[tuple[int, str]]:
        """The inverses to be made, by layer and side; equal on all ranks."""
        known = [
            (index, side)
            for index, state in enumerate(self.states)
            for side in _SIDES
            if f"{side}_factor" in state
        ]
        if not is_due:
            return [each for each in known if f"{each[1]}_inverse" not in self.states[each[0]]]
        if not self._c.tolerance or not known:
            return known
        # Norms may differ in the last bit between machines, so one rank decides.
        mine = [self._has_changed(self.states[index], side) for index, side in known]
        flags = from_rank_0(mine, self._c.device, self._group)
        self.counts["kept_inverses"] += flags.count(False)
        return [each for each, has_changed in zip(known, flags, strict=True) if has_changed]

    def _has_changed(self, state: State, side: str) -> bool:
        """Since it was inverted, by more than the tolerance."""
        before, now = state.get(f"{side}_inverted"), state[f"{side}_factor"]
        if before is None:
            return True
        return bool(torch.dist(now, before) > self._c.tolerance * torch.linalg.norm(before))


def _inverse(state: Mapping[str, Any], side: str, damping: float) -> Tensor:
    """The inverse of the side's damped factor; NaN if it is not positive definite.

    The input factor gets pi * sqrt(damping) on its diagonal and the output factor sqrt(damping) /
    pi, where pi**2 is the ratio of their mean eigenvalues (Martens & Grosse 2015, section 6.3).
    """
    first, second = (float(state[f"{each}_factor"].diagonal().mean()) for each in _SIDES)
    pi = math.sqrt(first / second) if first > 0 and second > 0 else 1.0
    factor: Tensor = state[f"{side}_factor"]
    damped = factor.clone()
    damped.diagonal().add_(math.sqrt(damping) * (pi if side == "input" else 1 / pi))
    root, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0:
        return torch.full_like(factor, math.nan)
    return torch.cholesky_inverse(root)
