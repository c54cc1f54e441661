"""A communication hook's state as a dict that can be saved, checked and given to other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, dict[str, torch.Tensor]]

FORMAT = "q7x2.comm_hook"
VERSION = 1


class HookStateError(ValueError):
    """A saved hook's state does not fit this model, hook, job or version of q7x2."""


def shapes_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """What makes a model another one: names and shapes, ``{"weight": "64x16"}``."""
    return {name: "x".join(map(str, tensor.shape)) for name, tensor in parameters}


def key_of(rank: int) -> str:
    """Where the state of one rank's own lies: distributed checkpoints keep one of equal keys."""
    return f"rank_{rank}"


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks of a job as one."""
    states = list(states)
    if not states:
        raise HookStateError("expected the hook's state of at least one rank, got none")
    result = dict(states[0])
    result["local"] = {}
    for state in states:
        for key in ("hook", "recipe", "world_size", "step", "shapes"):
            if state.get(key) != result.get(key):
                raise HookStateError(
                    f"the states are not of one moment of one job: {key} is {result.get(key)!r} in "
                    f"one and {state.get(key)!r} in another"
                )
        result["local"] |= state.get("local", {})
    return result


def check(
    state: Mapping[str, Any], hook: str, recipe: Mapping[str, Any], shapes: Mapping[str, str]
) -> None:
    """Raises HookStateError, which says what was expected, unless ``state`` fits."""
    if state.get("format") != FORMAT:
        raise HookStateError(
            f"expected the state of a q7x2 hook (format {FORMAT!r}), got {state.get('format')!r}"
        )
    if state["version"] != VERSION:
        raise HookStateError(
            f"expected a hook's state of version {VERSION}, got version {state['version']}: it was "
            f"written by another version of q7x2"
        )
    if state["hook"] != hook:
        raise HookStateError(f"expected the state of the hook {hook}, got that of {state['hook']}")
    differences = [
        f"{name} was {state['recipe'].get(name)!r} and is {recipe.get(name)!r}"
        for name in sorted({*state["recipe"], *recipe})
        if state["recipe"].get(name) != recipe.get(name)
    ]
    if differences:
        raise HookStateError(f"the state was saved by another {hook}: {'; '.join(differences)}")
    for name in sorted({*state["shapes"], *shapes}):
        was, wanted = state["shapes"].get(name), shapes.get(name)
        if was != wanted:
            raise HookStateError(
                f"expected the state of this model, got another's: parameter {name} is "
                f"{wanted or 'absent'} here and {was or 'absent'} in the state"
            )


def local_part(state: Mapping[str, Any], rank: int, world_size: int) -> Tensors:
    """This rank's own tensors: those it saved, or its share of everybody's."""
    local: dict[str, Tensors] = state.get("local", {})
    if not any(local.values()):
        return {}  # a hook that keeps nothing of its own
    saved_by = state["world_size"]
    if saved_by == world_size:
        if key_of(rank) not in local:
            raise HookStateError(f"expected the state of rank {rank}, got that of {list(local)}")
        return local[key_of(rank)]
    if missing := [r for r in range(saved_by) if key_of(r) not in local]:
        raise HookStateError(
            f"the state was saved by {saved_by} ranks and this job has {world_size}: to keep the "
            f"sum of the residuals, load the states of all {saved_by} ranks as a list; those of "
            f"ranks {missing} are missing"
        )
    everybody = [local[key_of(r)] for r in range(saved_by)]
    return {
        kind: {
            name: _share([part[kind][name] for part in everybody], world_size) for name in tensors
        }
        for kind, tensors in everybody[0].items()
    }


def _share(tensors: list[torch.Tensor], world_size: int) -> torch.Tensor:
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + tensor
    return (total / world_size).to(tensors[0].dtype)
