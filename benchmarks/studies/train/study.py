"""The cells of the study: what there is to measure, how it is run, where it is kept.

A cell is one method at one place: a rate, or a task and a seed. Finished cells are kept in a JSON
file, so a study that was stopped goes on where it was.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import facts
from benchmarks.harness.ranks import run
from benchmarks.studies.train.cadence import CADENCE_METHODS
from benchmarks.studies.train.methods import (
    BASELINE,
    BY_LABEL,
    METHODS,
    ONLY_LOSSES,
    POWERSGD,
    TORCH_POWERSGD,
    UNCOMPRESSED,
)
from benchmarks.studies.train.sharded import SHARDED_METHODS
from benchmarks.studies.train.variants import EVERY, HELD_OUT, PRICED, STUDIED, with_references
from tests.lab import Topology

RANKS = 4
_CELL_TIMEOUT_S = 3600
OTHER_TEXT = "another text"  # of the part "held-out-study"

_GPT = {
    "layers": 2,
    "heads": 4,
    "dim": 192,
    "context": 64,
    "batch": 1,
    "lr": 1e-3,
    "warmup": 20,
    "bucket_mb": 1.0,
    "held_out": 64,
}
_TEXT = {
    **_GPT,
    "dim": 96,
    "whole_training": True,
    "steps": 1000,
    "every": 20,
    "last": 3,
}
_DIGITS = {
    "width": 32,
    "batch": 16,
    "lr": 0.05,
    "warmup": 20,
    "bucket_mb": 0.1,
    "whole_training": True,
    "steps": 1000,
    "every": 20,
    "last": 3,
}
RECIPES: dict[str, Any] = {
    # Steps of the baseline by rate: what takes about five minutes.
    "speed": {
        **_GPT,
        "dim": 256,
        "bucket_mb": 25.0,  # DDP's default
        "turn": 5,
        "steps": {"20mbit": 10, "100mbit": 60, "1gbit": 200},
    },
    "accuracy": {"gpt": _TEXT, "digits": _DIGITS},
    # A backward long enough to hide something behind.
    "powersgd": {
        **_GPT,
        "dim": 256,
        "batch": 4,
        "bucket_mb": 25.0,
        "warm_up": 5,
        "steps": 50,
    },
    "compute-bound": {**_GPT, "batch": 16, "warm_up": 5, "steps": 60},
    "overlap": {**_GPT, "layers": 4, "batch": 8, "bucket_mb": 0.5, "warm_up": 5, "steps": 15},
    "hook-cpu": {
        **_GPT,
        "layers": 8,
        "dim": 512,
        "heads": 8,
        "context": 32,
        "bucket_mb": 25.0,
        "warm_up": 3,
        "steps": 6,
        "held_seconds": 2.0,
    },
    "fsdp": {**_GPT, "dim": 256, "layers": 4, "warm_up": 5, "steps": 40},
    "fsdp-accuracy": _TEXT,
    # DDP trains for `ddp_steps` only: at 20 Mbit/s that takes as long as all others together.
    "cadence": {
        **_GPT,
        "dim": 256,
        "bucket_mb": 25.0,
        "interval": 30,
        "steps": 1500,
        "ddp_steps": 60,
        "every": 10,
        "last": 1,
    },
    # A hundred outer steps: selections are late by as many as their ratio leaves out.
    "cadence-accuracy": {**_TEXT, "interval": 30, "steps": 3000, "every": 60},
    "cadence-digits": {**_DIGITS, "task": "digits", "interval": 30, "steps": 3000, "every": 60},
    "variants": _TEXT,
    # Each changes one thing that defaults were not chosen by.
    "held-out-study": {
        OTHER_TEXT: {**_TEXT, "text": "torch headers"},
        "another size": {**_TEXT, "layers": 4, "dim": 128},
        "another schedule": {**_TEXT, "schedule": "trapezoid", "warmup": 50},
    },
    "long": {**_TEXT, "steps": 5000, "every": 100},
}
PARTS = tuple(RECIPES)
TASKS = tuple(RECIPES["accuracy"])
_COMPUTE_BOUND_RATE = "1gbit"
# Of their jobs each has a rate, and those of the parts that are named nowhere have a seed.
_BY_RATE = ("speed", "powersgd", "compute-bound", "overlap", "fsdp")

_POWERSGD_LABELS = [TORCH_POWERSGD, POWERSGD, "PowerSGD 4 alternating"]
# 1-bit Adam's hook belongs to its optimizer, so the parts that look into a hook leave it out.
OURS = tuple(
    m.label for m in METHODS if m.backend == "q7x2" and m.label not in (UNCOMPRESSED, *ONLY_LOSSES)
)
_WITH_A_HOOK = tuple(label for label in OURS if label != "1-bit Adam")


@dataclass(frozen=True)
class Choice:
    """What of the study is wanted."""

    parts: Sequence[str]
    rates: Sequence[str]
    tasks: Sequence[str]
    seeds: int
    labels: Sequence[str]
    hosts: Sequence[int] = (RANKS,)


@dataclass(frozen=True)
class Job:
    """One set of processes.

    Attributes:
        place: what its cells have in common, beside the part.
        rate: of the virtual hosts' links; None: ranks are processes of this host.
        ranks: one for each host.
        together: its cells are measured against each other, so all or none of them count.
    """

    part: str
    place: dict[str, Any]
    labels: list[str]
    recipe: dict[str, Any]
    rate: str | None = None
    seed: int = 0
    ranks: int = RANKS
    together: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return " ".join([self.part, *map(str, self.place.values())])


def jobs(choice: Choice) -> Iterator[Job]:
    for part in choice.parts:
        recipe = RECIPES[part]
        if part == "accuracy":
            for task, seed in itertools.product(choice.tasks, range(choice.seeds)):
                place = {"task": task, "seed": seed}
                mine = _labels(part, choice, task)
                yield Job(part, place, mine, recipe[task], None, seed, extra={"task": task})
        elif part == "held-out-study":
            for seed, change in itertools.product(range(choice.seeds), recipe):
                place = {"change": change, "seed": seed}
                mine = _labels(part, choice, change)
                yield Job(part, place, mine, recipe[change], None, seed)
        elif part == "cadence":
            for hosts, rate in itertools.product(choice.hosts, choice.rates):
                place = {"rate": rate, "hosts": hosts}
                yield Job(part, place, _labels(part, choice), recipe, rate, ranks=hosts)
        elif part == "hook-cpu":
            yield Job(part, {}, _labels(part, choice), recipe)
        elif part in _BY_RATE:
            for rate in [_COMPUTE_BOUND_RATE] if part == "compute-bound" else choice.rates:
                extra = {}
                if part == "speed":
                    extra["steps"] = recipe["steps"].get(rate, recipe["steps"]["1gbit"])
                place, mine, together = {"rate": rate}, _labels(part, choice), part != "overlap"
                yield Job(part, place, mine, recipe, rate, together=together, extra=extra)
        else:
            for seed in range(choice.seeds):
                yield Job(part, {"seed": seed}, _labels(part, choice), recipe, None, seed)


def _labels(part: str, choice: Choice, place: str = "") -> list[str]:
    """What a part measures: of the chosen methods those that fit, and what they are beside."""

    def chosen(labels: Iterable[str]) -> list[str]:
        return [label for label in labels if label in choice.labels]

    hooks = chosen(BY_LABEL)
    match part:
        case "speed":
            timed = [label for label in hooks if label not in ONLY_LOSSES]
            return list(dict.fromkeys([BASELINE, *timed]))
        case "accuracy":
            fit = [label for label in hooks if place in BY_LABEL[label].tasks]
            beside = [BY_LABEL[label].uncompressed for label in fit]
            return list(dict.fromkeys([UNCOMPRESSED, *beside, *fit]))
        case "powersgd":
            return _POWERSGD_LABELS
        case "compute-bound":
            return [UNCOMPRESSED, *chosen(_WITH_A_HOOK)]
        case "overlap" | "hook-cpu":
            return chosen(_WITH_A_HOOK)
        case "fsdp":
            return [method.label for method in SHARDED_METHODS]
        case "fsdp-accuracy":
            return [method.label for method in SHARDED_METHODS if method.backend == "q7x2"]
        case "cadence":
            return chosen(method.label for method in CADENCE_METHODS if method.is_installed)
        case "cadence-accuracy" | "cadence-digits":
            return [method.label for method in CADENCE_METHODS if method.peer is None]
        case "variants":
            return with_references(chosen(STUDIED))
        case _:
            priced = PRICED if place == OTHER_TEXT else ()
            return with_references(chosen((*HELD_OUT, *priced)))


class Study:
    """The file of cells.

    Args:
        forget: parts whose cells are to be measured anew.
    """

    def __init__(self, path: Path, forget: Sequence[str] = ()) -> None:
        self.path = path
        self.cells: list[dict[str, Any]] = []
        self.machine: dict[str, Any] = facts.collect()
        if not path.exists():
            return
        kept = json.loads(path.read_text())
        self.machine = kept["machine"]
        self.cells = [cell for cell in kept["cells"] if cell["part"] not in forget]
        for part in {cell["part"] for cell in self.cells}:
            if kept["recipes"][part] != RECIPES[part]:
                raise ValueError(
                    f"the part {part} of {path} was measured with another recipe; give --fresh "
                    f"with --parts {part}, or another --out"
                )

    def of(self, part: str, **place: Any) -> list[dict[str, Any]]:
        """In the order of METHODS, SHARDED_METHODS, CADENCE_METHODS, and then the others."""
        every = (*METHODS, *SHARDED_METHODS, *CADENCE_METHODS, *EVERY.values())
        order = {label: i for i, label in enumerate(dict.fromkeys(m.label for m in every))}
        found = [
            cell
            for cell in self.cells
            if cell["part"] == part and all(cell[key] == value for key, value in place.items())
        ]
        return sorted(found, key=lambda cell: order.get(cell["label"], len(order)))

    def by_label(self, part: str, **place: Any) -> dict[str, dict[str, Any]]:
        return {cell["label"]: cell for cell in self.of(part, **place)}

    def missing(self, job: Job) -> list[str]:
        done = self.by_label(job.part, **job.place)
        left = [label for label in job.labels if label not in done]
        return job.labels if left and job.together else left

    def measure(self, job: Job, said: Callable[[str], None]) -> None:
        """Runs what is missing of `job`, and writes each cell to the file as it comes.

        Args:
            said: is given each line of rank 0.
        """
        labels = self.missing(job)
        if job.together:
            again = {id(cell) for cell in self.of(job.part, **job.place)}
            self.cells = [cell for cell in self.cells if id(cell) not in again]
        with tempfile.TemporaryDirectory(prefix="q7x2-train-") as folder:
            lines = Path(folder) / "cells.jsonl"
            spec = {
                "part": job.part,
                "labels": labels,
                "recipe": job.recipe,
                "seed": job.seed,
                "cells": str(lines),
                **job.extra,
            }
            kept = 0

            def keep() -> None:
                nonlocal kept
                measured = lines.read_text().splitlines() if lines.exists() else []
                if not job.together or len(measured) == len(labels):
                    self._keep(job, [json.loads(each) for each in measured[kept:]])
                    kept = len(measured)

            def heard(text: str) -> None:
                said(text)
                if text.startswith("measured "):
                    keep()

            try:
                _run(job, spec, heard)
            finally:
                keep()

    def _keep(self, job: Job, measured: list[dict[str, Any]]) -> None:
        if not measured:
            return
        self.machine = facts.collect()
        where = {key: self.machine[key] for key in ("commit", "cpu")}
        self.cells += [{"part": job.part, **job.place, **where, **cell} for cell in measured]
        self._write()

    def _write(self) -> None:
        """A line for each cell, so that a change of one is a change of a line.

        Whoever stops the study finds the file of before or of after.
        """
        head = json.dumps({"machine": self.machine, "recipes": RECIPES}, indent=1)
        cells = ",\n".join(json.dumps(cell) for cell in self.cells)
        beside = self.path.with_suffix(".new")
        beside.write_text(f'{head[:-2]},\n "cells": [\n{cells}\n]}}\n')
        beside.replace(self.path)


def _run(job: Job, spec: dict[str, Any], said: Callable[[str], None]) -> None:
    def on_line(rank: int, text: str) -> None:
        if rank == 0:
            said(text.strip())

    run(
        *("benchmarks.studies.train.worker", spec, job.ranks),
        topology=Topology(hosts=job.ranks, rate=job.rate) if job.rate else None,
        apart=True,
        own_cache=False,
        timeout_s=_CELL_TIMEOUT_S * len(spec["labels"]),
        on_line=on_line,
    )
