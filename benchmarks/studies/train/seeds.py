"""Losses of several seeds: each method trains from start to end, one after the other, untimed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.studies.train.training import Groups, Training
from benchmarks.studies.train.variants import EVERY


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method as it is done, on all ranks."""
    recipe, groups = spec["recipe"], Groups()
    for label in spec["labels"]:
        training = Training(EVERY[label], spec["task"], recipe, groups, spec["seed"])
        every = recipe["every"]
        losses, held_out = [], []
        for _ in range(recipe["steps"] // every):
            mean = torch.tensor(sum(training.step().loss for _ in range(every)) / every)
            dist.all_reduce(mean)
            losses.append(round(mean.item() / dist.get_world_size(), 5))
            loss, right = training.score()
            held_out.append(round(loss, 5))
        yield {
            "label": label,
            "every": every,
            "losses": losses,
            "held_out": held_out,
            "final_loss": sum(held_out[-recipe["last"] :]) / recipe["last"],
            "accuracy": right,
        }
