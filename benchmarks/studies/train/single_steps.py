"""Single steps of all methods in turns: what one costs beside another, whatever the losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.studies.train.methods import BY_LABEL
from benchmarks.studies.train.training import Groups, Training, alternate


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method with the seconds of each step, of the slowest rank."""
    recipe, groups = spec["recipe"], Groups()
    trainings = [
        Training(BY_LABEL[label], "gpt", recipe, groups, spec["seed"]) for label in spec["labels"]
    ]
    taken: dict[str, list[tuple[float, float, float]]] = {t.method.label: [] for t in trainings}
    for turn in range(recipe["warm_up"] + recipe["steps"]):
        dist.barrier()
        compute = trainings[0].compute()
        for training in alternate(trainings, turn):
            dist.barrier()
            step = training.step()
            taken[training.method.label].append((compute, step.reduced_seconds, step.seconds))
    for training in trainings:
        slowest = torch.tensor(taken[training.method.label][recipe["warm_up"] :]).double()
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        columns = [[round(each, 6) for each in column] for column in slowest.T.tolist()]
        yield {
            "label": training.method.label,
            **dict(zip(("compute", "reduced", "seconds"), columns, strict=True)),
        }
