"""Trainings with hooks of DDP or with FSDP2, in three ways.

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

from benchmarks.harness import timing
from benchmarks.studies.train.methods import BASELINE, BY_LABEL
from benchmarks.studies.train.sharded import SHARDED_BY_LABEL, ShardedTraining
from benchmarks.studies.train.training import (
    Groups,
    Replica,
    Training,
    alternate,
    sent,
    sent_by_a_barrier,
)
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
    rounds: dict[str, list[dict[str, float]]] = {t.label: [] for t in trainings}
    compute: list[float] = []
    barrier = sent_by_a_barrier()
    base = next(t for t in trainings if t.label == BASELINE)
    active, number = trainings, 0
    while active:
        if base.steps < spec["steps"]:
            compute.append(median(timing.largest([_at_once(base.compute) for _ in range(turn)])))
        for training in alternate(active, number):
            rounds[training.label].append(_turn(training, turn, barrier))
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
                and min(each["held_out"] for each in rounds[t.label]) > target
            ]
    for training in trainings:
        shapes, formula = training.shapes, training.method.message_bytes
        yield {
            "label": training.label,
            "turn": turn,
            "steps": spec["steps"],
            "parameters": training.parameters,
            "formula_bytes": formula(shapes) if formula else None,
            "counts_bytes": training.attached is not None,
            "compute": compute,
            "rounds": {
                name: [round(each[name], 7) for each in rounds[training.label]]
                for name in rounds[training.label][0]
            },
        }


def _at_once(call: Callable[[], T]) -> T:
    dist.barrier()
    return call()


def _turn(training: Training, steps: int, barrier: Tensor) -> dict[str, float]:
    messages = training.message_bytes()
    dist.barrier()
    before = sent()
    taken = [_at_once(training.step) for _ in range(steps)]
    dist.barrier()  # what a rank still had to send leaves before it
    moved = sent() - before - (steps + 1) * barrier
    slowest = timing.largest(
        [each.reduced_seconds for each in taken] + [each.seconds for each in taken]
    )
    *losses, bytes_, packets = timing.mean([*(each.loss for each in taken), *moved.tolist()])
    return {
        "loss": sum(losses) / steps,
        "held_out": training.score()[0],
        "reduced": median(slowest[:steps]),
        "step": median(slowest[steps:]),
        "seconds": sum(slowest[steps:]),
        "bytes": bytes_ / steps,
        "packets": packets / steps,
        "message_bytes": (training.message_bytes() - messages) / steps,
    }


def _replica(label: str, spec: dict[str, Any], groups: Groups) -> Replica:
    """The training of a method, with a hook of DDP or with FSDP2."""
    recipe, seed = spec["recipe"], spec["seed"]
    if label in SHARDED_BY_LABEL:
        return ShardedTraining(SHARDED_BY_LABEL[label], recipe, groups, seed)
    return Training(EVERY[label], spec.get("task", "gpt"), recipe, groups, seed)


def measure_single_steps(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method: seconds of each step, of the slowest rank, and its bytes."""
    recipe, groups = spec["recipe"], Groups()
    trainings = [_replica(label, spec, groups) for label in spec["labels"]]
    taken: dict[str, list[tuple[float, ...]]] = {t.label: [] for t in trainings}
    moved: dict[str, list[Tensor]] = {t.label: [] for t in trainings}
    barrier = sent_by_a_barrier()
    for turn in range(recipe["warm_up"] + recipe["steps"]):
        compute = _at_once(trainings[0].compute)
        for training in alternate(trainings, turn):
            dist.barrier()
            before = sent()
            step = training.step()
            dist.barrier()  # what a rank still had to send leaves before it
            moved[training.label].append(sent() - before - barrier)
            taken[training.label].append((compute, step.reduced_seconds, step.seconds))
        if dist.get_rank() == 0:
            print(f"at step {turn}", flush=True)
    for training in trainings:
        slowest = torch.tensor(taken[training.label][recipe["warm_up"] :]).double()
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        columns = [[round(each, 6) for each in column] for column in slowest.T.tolist()]
        sent_each = torch.stack(moved[training.label][recipe["warm_up"] :]).mean(0)
        bytes_, packets = timing.mean(sent_each.tolist())
        yield {
            "label": training.label,
            **dict(zip(("compute", "reduced", "seconds"), columns, strict=True)),
            "bytes": bytes_,
            "packets": packets,
            "parameters": training.parameters,
        }


def measure_losses(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method as it is done, on all ranks."""
    recipe, groups = spec["recipe"], Groups()
    for label in spec["labels"]:
        training = _replica(label, spec, groups)
        every = recipe["every"]
        losses, held_out = [], []
        for _ in range(recipe["steps"] // every):
            (mean,) = timing.mean([sum(training.step().loss for _ in range(every)) / every])
            losses.append(round(mean, 5))
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
