"""Save and load all that the next step depends on: a resumed run repeats an unbroken one."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from corpus import Sampler
from torch import Tensor, nn

NAME = "checkpoint.pt"


def _rng_state() -> list[Tensor]:
    """The CPU's generator, which dropout uses there, and the current CUDA device's if in use."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def save(
    folder: Path,
    recipe: dict[str, Any],
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sampler: Sampler,
) -> None:
    """Collective. Rank 0 replaces the checkpoint in one move: it is the old one or the new one."""
    rng: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(_rng_state(), rng)
    if rng is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{NAME}.unfinished"
    with unfinished.open("wb") as file:
        state = {
            "recipe": recipe,
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "sampler": sampler.generator.get_state(),
            "rng": rng,
        }
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / NAME)


def load(
    folder: Path,
    recipe: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sampler: Sampler,
) -> int:
    """Steps done. Exits with what differs when the checkpoint was written under another recipe."""
    path = folder / NAME
    if not path.exists():
        raise SystemExit(f"error: no checkpoint at {path}: start without --resume")
    state = torch.load(path, map_location="cpu", weights_only=True)
    written = state["recipe"]
    if differences := [
        f"{name} {written.get(name)}, not {recipe.get(name)}"
        for name in sorted(written.keys() | recipe.keys())
        if written.get(name) != recipe.get(name)
    ]:
        raise SystemExit(f"error: {path} was written with {'; '.join(differences)}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sampler.generator.set_state(state["sampler"])
    cpu, *cuda = state["rng"][dist.get_rank()]
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state(cuda[0])
    return state["step"]
