"""The state of DiLoCo as a dict that can be saved, checked and given to other ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from q7x2._core.hook_state import HookStateError, Keys, local_part
from q7x2.cadence import diloco_reports as reports
from q7x2.cadence.diloco_fragment import Flight, Fragment, views
from q7x2.cadence.diloco_options import Named

Tensors = dict[str, dict[str, Tensor]]

FORMAT = "q7x2.diloco"
VERSION = 1
HOOK = "DiLoCo"  # what `_hook_state.merged` compares

_NEEDED = ("version", "recipe", "world_size", "step", "shapes", "position", "fragments", "shared")


def shared_weights(fragments: Sequence[Fragment]) -> dict[str, Tensor]:
    """Copies, by parameter's name."""
    tensors: dict[str, Tensor] = {}
    for fragment in fragments:
        _add(tensors, fragment.weights, fragment.parameters)
    return tensors


def residuals(fragments: Sequence[Fragment]) -> dict[str, Tensor]:
    """Copies, by parameter's name."""
    tensors: dict[str, Tensor] = {}
    for fragment in fragments:
        _add(tensors, fragment.residual, fragment.coded)
    return tensors


def shared_tensors(fragments: Sequence[Fragment], world_size: int) -> Tensors:
    """Copies of what all ranks have alike, by kind and parameter's name; reports by fragment.

    With overlap, sums that have arrived are there even if none has: zeros, which a distributed
    checkpoint can be loaded into.
    """
    weights = shared_weights(fragments)
    tensors: Tensors = {"weights": weights, "momentum": {}, "arrived": {}, "reports": {}}
    for fragment in fragments:
        _add(tensors["momentum"], fragment.momentum, fragment.parameters)
        if not fragment.may_be_late:
            continue
        numel, slots = fragment.weights.numel(), reports.WIDTH * world_size
        flight = fragment.flight
        sums = fragment.weights.new_zeros(numel + slots) if flight is None else flight.sums
        _add(tensors["arrived"], sums, fragment.parameters)
        tensors["reports"][str(fragment.index)] = sums[numel:].clone()
    return tensors


def local_tensors(fragments: Sequence[Fragment]) -> Tensors:
    """Copies of what this rank has for itself, by kind and parameter's name."""
    tensors: Tensors = {"residual": residuals(fragments), "arrived_residual": {}}
    for fragment in fragments:
        if fragment.may_be_late:
            flight = fragment.flight
            late = fragment.residual if flight is None else flight.residual
            _add(tensors["arrived_residual"], late, fragment.coded)
    return tensors


def facts_of(fragment: Fragment) -> dict[str, int | None]:
    """What is no tensor; ``arrives``: the step at which what is on the way is applied."""
    arrives = None if fragment.flight is None else fragment.flight.arrives
    return {"version": fragment.version, "due": fragment.due, "arrives": arrives}


def check(
    state: Mapping[str, Any], recipe: Mapping[str, Any], shapes: Mapping[str, str], count: int
) -> None:
    """Raises HookStateError, which says what was expected, unless ``state`` fits.

    Args:
        count: Number of fragments.
    """
    if state.get("format") != FORMAT:
        raise HookStateError(
            f"expected the state of a DiLoCo (format {FORMAT!r}), got {state.get('format')!r}"
        )
    if missing := [key for key in _NEEDED if key not in state]:
        raise HookStateError(f"the state is not whole: {', '.join(missing)} missing")
    if state["version"] != VERSION:
        raise HookStateError(f"expected a state of version {VERSION}, got {state['version']}")
    for what, saved, mine in (
        ("", _with_names_of_today(state["recipe"]), recipe),
        ("shape of ", state["shapes"], shapes),
    ):
        for name in sorted({*saved, *mine}):
            if saved.get(name) != mine.get(name):
                raise HookStateError(
                    f"the state is of another DiLoCo: {what}{name} was {saved.get(name)!r} and is "
                    f"{mine.get(name)!r}"
                )
    if len(state["fragments"]) != count:
        raise HookStateError(f"expected {count} fragments, got {len(state['fragments'])}")


def _with_names_of_today(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """States of 0.1.0a1 call ``sync_every``, and that of an interval, ``every``."""
    names = {name: "sync_every" if name == "every" else name for name in recipe}
    values = {names[name]: value for name, value in recipe.items()}
    if isinstance(values.get("sync_every"), str):
        values["sync_every"] = re.sub(r"\bevery=", "sync_every=", values["sync_every"])
    return values


def load(
    state: Mapping[str, Any], fragments: Sequence[Fragment], rank: int, world_size: int, keys: Keys
) -> None:
    """Give the fragments what a state that fits holds; HookStateError changes nothing.

    On another number of ranks each takes an equal share of the residuals, and outer gradients that
    were on the way are sent again.
    """
    shared = keys.take(state["shared"])
    local = local_part(state, rank, world_size, keys)
    # In units of one rank's outer gradient, so that the mean lacks as much as before.
    share = world_size / state["world_size"]
    copies = _Copies()
    flights: list[Flight | None] = []
    for fragment, facts in zip(fragments, state["fragments"], strict=True):
        copies.add(fragment.weights, shared, "weights", fragment.parameters)
        copies.add(fragment.momentum, shared, "momentum", fragment.parameters)
        copies.add(fragment.residual, local, "residual", fragment.coded, share)
        flight = None
        if facts["arrives"] is not None and state["world_size"] == world_size:
            sums = fragment.weights.new_zeros(fragment.weights.numel() + reports.WIDTH * world_size)
            by_fragment = [(str(fragment.index), sums[fragment.weights.numel() :])]
            copies.add(sums, shared, "arrived", fragment.parameters)
            copies.add(by_fragment[0][1], shared, "reports", by_fragment)
            residual = None if fragment.residual is None else torch.zeros_like(fragment.residual)
            copies.add(residual, local, "arrived_residual", fragment.coded)
            flight = Flight(sums, residual, facts["arrives"])
        flights.append(flight)
    copies.make()
    for fragment, facts, flight in zip(fragments, state["fragments"], flights, strict=True):
        fragment.version, fragment.contributes, fragment.flight = facts["version"], True, flight
        is_lost = facts["arrives"] is not None and flight is None
        fragment.due = state["step"] if is_lost else facts["due"]


class _Copies:
    """Copies that are made together, once it is clear that all of them can be made."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor, float]] = []

    def add(
        self,
        into: Tensor | None,
        tensors: Tensors,
        kind: str,
        parameters: Named,
        factor: float = 1.0,
    ) -> None:
        if into is None:
            return
        for name, view in views(into, parameters).items():
            source = tensors.get(kind, {}).get(name)
            if source is None or source.shape != view.shape:
                got = "nothing" if source is None else f"a tensor of shape {list(source.shape)}"
                raise HookStateError(
                    f"expected the {kind} of {name}, of shape {list(view.shape)}, got {got}"
                )
            self._pairs.append((view, source, factor))

    def make(self) -> None:
        for view, source, factor in self._pairs:
            view.copy_(source)
            if factor != 1.0:
                view.mul_(factor)


def _add(into: dict[str, Tensor], flat: Tensor | None, parameters: Named) -> None:
    if flat is not None:
        into |= {name: view.clone() for name, view in views(flat, parameters).items()}
