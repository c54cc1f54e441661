"""The training whose rank is killed and joins again; its losses are those of the benchmark."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy")

from benchmarks.studies.train.cadence import STREAMING
from benchmarks.studies.train.study import RECIPES
from tests.faults import rejoin

TINY = {"layers": 1, "heads": 2, "dim": 16, "context": 16, "held_out": 8}


@pytest.mark.nightly("minutes: trains twice; test_diloco_failures has ranks that join")
def test_a_killed_rank_joins_again() -> None:
    recipe = {**RECIPES["cadence-accuracy"], **TINY, "interval": 10, "steps": 60, "every": 10}
    spec = {"method": STREAMING, "recipe": recipe, "seed": 0}
    undisturbed = rejoin.train_job({**spec, "is_killed": False})
    killed = rejoin.train_job({**spec, "is_killed": True})
    assert (undisturbed["killed_at"], killed["killed_at"], killed["joined_at"]) == (0, 20, 30)
    assert 0 < killed["noticed"] < killed["left"]
    assert math.isfinite(killed["loss"])
    assert killed["loss"] == pytest.approx(undisturbed["loss"], abs=0.5)
    assert killed["loss"] != undisturbed["loss"]


def test_differences_are_paired_by_seed() -> None:
    losses = {0: (2.0, 2.1), 1: (3.0, 3.1), 2: (4.0, 4.1)}
    runs = [
        {"seed": seed, "is_killed": is_killed, "loss": loss}
        for seed, pair in losses.items()
        for is_killed, loss in zip((False, True), pair, strict=True)
    ]
    figures = rejoin.compare(runs)
    assert figures["difference"] == pytest.approx(0.1)
    assert figures["low"] == pytest.approx(0.1)
    assert figures["spread"] == 1.0
