"""A communication hook's state as a dict that can be saved, checked and given to other ranks."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Keys:
    """Where state lies. Distributed checkpoints keep one value of those of equal keys, so what
    differs between ranks has other keys on each of them.

    Args:
        part: The part of the job whose ranks share state: an FSDP2 model's shard and its replicas,
            or a process group among others. None: all ranks do.
    """

    part: str | None = None

    @property
    def _prefix(self) -> str:
        return "" if self.part is None else f"{self.part}_"

    def of_rank(self, rank: int) -> str:
        return f"{self._prefix}rank_{rank}"

    def add(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{self._prefix}{kind}": tensors for kind, tensors in shared.items()}

    def take(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """What `add` was given."""
        mine = [kind for kind in shared if kind.startswith(self._prefix)]
        return {kind.removeprefix(self._prefix): shared[kind] for kind in mine}


# Tensors by bucket: their number and shapes are DDP's to choose, and unknown before the first
# backward. A distributed checkpoint can only fill tensors that it is shown, so they are one object.
_BY_BUCKET = "basis_by_bucket"


def packed(shared: Tensors) -> dict[str, Any]:
    return {
        kind: {"all": _to_bytes(tensors)} if kind.endswith(_BY_BUCKET) else tensors
        for kind, tensors in shared.items()
    }


def unpacked(shared: Mapping[str, Any]) -> Tensors:
    return {
        kind: _from_bytes(tensors["all"]) if kind.endswith(_BY_BUCKET) else tensors
        for kind, tensors in shared.items()
    }


def _to_bytes(tensors: dict[str, torch.Tensor]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> dict[str, torch.Tensor]:
    import torch

    try:
        tensors: dict[str, torch.Tensor] = torch.load(io.BytesIO(data), weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise HookStateError(f"the bases by bucket cannot be read: {error}") from error
    return tensors


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks of a job as one."""
    states = list(states)
    if not states:
        raise HookStateError("expected the hook's state of at least one rank, got none")
    result = dict(states[0])
    result["shared"], result["local"] = {}, {}
    for state in states:
        for key in ("hook", "recipe", "world_size", "step", "shapes"):
            if state.get(key) != result.get(key):
                raise HookStateError(
                    f"the states are not of one moment of one job: {key} is {result.get(key)!r} in "
                    f"one and {state.get(key)!r} in another"
                )
        result["shared"] |= state.get("shared", {})
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
    needed = ("version", "hook", "recipe", "world_size", "step", "loss_scale", "shapes", "shared")
    if missing := [key for key in needed if key not in state]:
        raise HookStateError(f"the hook's state is not whole: {', '.join(missing)} missing")
    if state["version"] != VERSION:
        raise HookStateError(
            f"expected a hook's state of version {VERSION}, got version {state['version']}: it was "
            f"written by another version of q7x2"
        )
    if state["hook"] != hook:
        raise HookStateError(f"expected the state of the hook {hook}, got that of {state['hook']}")
    saved = _with_whole_names(state["recipe"], hook)
    differences = [
        f"{name} was {saved.get(name)!r} and is {recipe.get(name)!r}"
        for name in sorted({*saved, *recipe})
        if saved.get(name) != recipe.get(name)
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


def _with_whole_names(recipe: Mapping[str, Any], hook: str) -> dict[str, Any]:
    """In states of 0.1.0a1, the ``int4`` of a ``Quantize`` is the codec that has this name now."""
    names = {
        name: _with_whole_names(value, value["hook"])
        if isinstance(value, Mapping) and "hook" in value
        else value
        for name, value in recipe.items()
    }
    if hook == "Quantize" and names.get("codec") == "int4":
        names["codec"] = "hadamard+int4:g=128"
    return names


def local_part(state: Mapping[str, Any], rank: int, world_size: int, keys: Keys) -> Tensors:
    """This rank's own tensors: those it saved, or its share of everybody's."""
    local: dict[str, Tensors] = state.get("local", {})
    if not any(local.values()):
        return {}  # a hook that keeps nothing of its own
    saved_by = state["world_size"]
    if saved_by == world_size:
        if keys.of_rank(rank) not in local:
            raise HookStateError(f"expected the state of {keys.of_rank(rank)}, got {list(local)}")
        return local[keys.of_rank(rank)]
    if missing := [r for r in range(saved_by) if keys.of_rank(r) not in local]:
        raise HookStateError(
            f"the state was saved by {saved_by} ranks and this job has {world_size}: to keep the "
            f"sum of the residuals, load the states of all {saved_by} ranks as a list; those of "
            f"ranks {missing} are missing"
        )
    everybody = [local[keys.of_rank(r)] for r in range(saved_by)]
    return {
        kind: {
            name: _share([part[kind][name] for part in everybody], world_size) for name in tensors
        }
        for kind, tensors in everybody[0].items()
    }


def without_lost_ranks(local: Tensors) -> Tensors:
    """What this rank may keep if others are gone, and what they kept with them.

    EF21's momenta add up to what all ranks received. Without those of the lost ranks they begin
    again from the mean, with deviations of zero.
    """
    hooks = {kind.rpartition(".")[0] for kind in local if kind.endswith("deviation")}
    return {k: tensors for k, tensors in local.items() if k.rpartition(".")[0] not in hooks}


def _share(tensors: list[torch.Tensor], world_size: int) -> torch.Tensor:
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + tensor
    return (total / world_size).to(tensors[0].dtype)
