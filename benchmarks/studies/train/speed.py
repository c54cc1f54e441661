"""Trainings with hooks, in three ways.

``measure``: a few steps of one method, then of the next, round after round. Whatever else happens
on the machine hits all of them alike, and each round gives every method's step beside compute
alone, measured in the same round.

``measure_single_steps``: single steps of all methods in turns: what one costs beside another,
whatever the losses.

``measure_losses``: each method trains from start to end, one after the other, untimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.studies.train.methods import BASELINE, BY_LABEL
from benchmarks.studies.train.training import Groups, Training, alternate, sent
from benchmarks.studies.train.variants import EVERY

T = TypeVar("T")

# How long a method may train to reach the baseline's final loss, in steps of the baseline.
_PATIENCE = 2.0


def measure(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method, on all ranks; the figures are those of all ranks."""
    recipe, turn = spec["recipe"], spec["recipe"]["turn"]
    groups = Groups()
    trainings = [
        Training(BY_LABEL[label], "gpt", recipe, groups, spec["seed"]) for label in spec["labels"]
    ]
    rounds: dict[str, list[dict[str, float]]] = {t.method.label: [] for t in trainings}
    compute: list[float] = []
    barrier = _sent_by_a_barrier()
    base = next(t for t in trainings if t.method.label == BASELINE)
    active, number = trainings, 0
    while active:
        if base.steps < spec["steps"]:
            compute.append(median(_slowest([_at_once(base.compute) for _ in range(turn)])))
        for training in alternate(active, number):
            rounds[training.method.label].append(_turn(training, turn, barrier))
        number += 1
        if dist.get_rank() == 0:
            print(f"at step {max(t.steps for t in active)}", flush=True)
        if base.steps >= spec["steps"]:
            target = rounds[BASELINE][-1]["held_out"]
            active = [
                t
                for t in trainings
                if t is not base
                and t.steps < _PATIENCE * spec["steps"]
                and min(each["held_out"] for each in rounds[t.method.label]) > target
            ]
    for training in trainings:
        shapes, formula = training.shapes, training.method.message_bytes
        yield {
            "label": training.method.label,
            "turn": turn,
            "steps": spec["steps"],
            "parameters": sum(torch.Size(shape).numel() for shape in shapes),
            "formula_bytes": formula(shapes) if formula else None,
            "counts_bytes": training.attached is not None,
            "compute": compute,
            "rounds": {
                name: [round(each[name], 7) for each in rounds[training.method.label]]
                for name in rounds[training.method.label][0]
            },
        }


def _at_once(call: Callable[[], T]) -> T:
    dist.barrier()
    return call()


def _slowest(seconds: list[float]) -> list[float]:
    """Each of the slowest rank's."""
    total = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(total, dist.ReduceOp.MAX)
    slowest: list[float] = total.tolist()
    return slowest


def _sent_by_a_barrier(count: int = 20) -> Tensor:
    dist.barrier()
    before = sent()
    for _ in range(count):
        dist.barrier()
    return (sent() - before) / count


def _turn(training: Training, steps: int, barrier: Tensor) -> dict[str, float]:
    messages = training.message_bytes()
    dist.barrier()
    before = sent()
    taken = [_at_once(training.step) for _ in range(steps)]
    dist.barrier()  # what a rank still had to send leaves before it
    moved = sent() - before - (steps + 1) * barrier
    slowest = _slowest([each.reduced_seconds for each in taken] + [each.seconds for each in taken])
    means = _mean(torch.cat([torch.tensor([each.loss for each in taken]).double(), moved]))
    return {
        "loss": sum(means[:steps].tolist()) / steps,
        "held_out": training.score()[0],
        "reduced": median(slowest[:steps]),
        "step": median(slowest[steps:]),
        "seconds": sum(slowest[steps:]),
        "bytes": means[steps].item() / steps,
        "packets": means[steps + 1].item() / steps,
        "message_bytes": (training.message_bytes() - messages) / steps,
    }


def _mean(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values / dist.get_world_size()


def measure_single_steps(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
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


def measure_losses(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
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
