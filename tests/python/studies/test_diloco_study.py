"""What the study's part on cadence trains and computes; nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")

import torch.distributed as dist
from hook_training import everybodys_objects

from benchmarks.harness import facts
from benchmarks.studies.train import cadence, cadence_report, report
from benchmarks.studies.train.cadence import CADENCE_METHODS, DILOCO, SPARSE, STREAMING
from benchmarks.studies.train.methods import BASELINE
from benchmarks.studies.train.study import RECIPES, Choice, Study, jobs

TINY = {"layers": 1, "heads": 2, "dim": 16, "context": 16, "held_out": 8}


@pytest.mark.nightly("runs a study; each method has tests of its own")
@pytest.mark.ranks(2)
def test_every_method_trains() -> None:
    recipe = {**RECIPES["cadence"], **TINY, "interval": 8, "steps": 16, "ddp_steps": 4, "every": 4}
    # hivemind starts processes, which those of this test may not.
    there = [method for method in CADENCE_METHODS if method.is_installed]
    labels = [method.label for method in there if method.needs != "hivemind"]
    cells = list(cadence.measure({"recipe": recipe, "labels": labels, "seed": 0}))
    assert [cell["label"] for cell in cells] == labels
    assert [cell["steps"] for cell in cells] == [4] + [16] * (len(labels) - 1)
    for cell in cells:
        assert len(cell["seconds"]) == len(cell["held_out"]) == 1 + cell["steps"] // 4
        assert cell["seconds"] == sorted(cell["seconds"])
        assert cell["held_out"][-1] < cell["held_out"][0]
    assert everybodys_objects(cells) == [cells] * dist.get_world_size()
    by_label = {cell["label"]: cell for cell in cells}
    assert by_label[DILOCO]["message_bytes"] == 2 * 4 * by_label[DILOCO]["parameters"]
    assert by_label[SPARSE]["message_bytes"] * 100 < by_label[DILOCO]["message_bytes"]
    # Peers learn the same.
    pairs = [("local SGD", "PyTorch post-local SGD, Gloo"), (DILOCO, "torchft DiLoCo, Gloo")]
    for ours, theirs in pairs:
        if theirs in by_label:
            losses = by_label[ours]["held_out"]
            assert by_label[theirs]["held_out"] == pytest.approx(losses, abs=1e-3)


def test_jobs_are_a_rate_or_a_seed() -> None:
    labels = [method.label for method in CADENCE_METHODS if method.is_installed]
    four, eight = jobs(Choice(["cadence"], ["20mbit"], [], 5, labels, (4, 8)))
    assert (four.labels, four.rate, four.ranks, four.together) == (labels, "20mbit", 4, False)
    assert (eight.ranks, eight.place) == (8, {"rate": "20mbit", "hosts": 8})
    (one,) = jobs(Choice(["cadence"], ["20mbit"], [], 5, [DILOCO]))
    assert one.labels == [DILOCO]
    seeds = list(jobs(Choice(["cadence-accuracy"], ["20mbit"], [], 3, [])))
    assert [(job.seed, job.rate) for job in seeds] == [(0, None), (1, None), (2, None)]
    assert seeds[0].labels == [method.label for method in CADENCE_METHODS if method.peer is None]


def _cell(label: str, seconds: float, bytes_: int, waited: float) -> dict[str, Any]:
    return {
        "part": "cadence",
        "commit": "abc",
        "rate": "20mbit",
        "hosts": 4,
        "label": label,
        "steps": 20,
        "every": 10,
        "seconds": [0.0, seconds, 2 * seconds],
        "bytes": [0, bytes_, 2 * bytes_],
        "held_out": [5.0, 4.0, 3.0],
        "final_loss": 3.0,
        "compute_seconds": 9.0,
        "waited_seconds": waited,
        "message_bytes": None if label == BASELINE else 10,
        "parameters": 1000,
    }


def test_the_report_compares_times_bytes_and_losses(tmp_path: Path) -> None:
    cells = [
        _cell(BASELINE, 100.0, 10**6, 0.0),
        _cell(DILOCO, 10.0, 10**5, 3.0),
        _cell(STREAMING, 4.0, 10**4, 1.0),
        _cell(SPARSE, 2.5, 10**3, 0.1),
    ]
    cells[2]["held_out"] = [5.0, 4.0, 3.5]
    for label, losses in ((BASELINE, [2.0, 2.1]), (DILOCO, [2.0, 2.2]), (SPARSE, [2.05, 2.2])):
        for seed, loss in enumerate(losses):
            cells.append({**_cell(label, 1.0, 1, 0.0), "part": "cadence-accuracy", "seed": seed})
            cells[-1]["final_loss"] = loss
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"machine": facts.collect(), "recipes": RECIPES, "cells": cells}))
    study = Study(path)
    assert cadence_report.sooner(cells[1], cells[0]) == 10
    assert cadence_report.sooner(cells[2], cells[0]) is None
    assert cadence_report.utilisation(cells[2]) == pytest.approx(0.9)
    goals = {
        what: (measured, reached) for what, _, measured, reached in cadence_report.goals(study)
    }
    assert list(goals.values())[:3] == [("100 x", True), ("90.0%", False), ("40.0 x", True)]
    assert len(goals) == 4
    text = report.markdown(study, [])
    assert "## Cadence\n" in text
    assert "| 4 hosts, 20mbit | DiLoCo | 20 | 20.0 s | 10.0 x | 75.0% | 10.0 kB | 3.0000 |" in text
    assert f"| {SPARSE} | 2 | 2.1250 | +0.0750" in text
