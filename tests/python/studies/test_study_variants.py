"""What the study computes of options of hooks, and what it trains."""

from __future__ import annotations

import json
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")

from benchmarks.harness import facts
from benchmarks.studies.train import figures, report, variants_report
from benchmarks.studies.train.figures import BAR_IN_WORDS
from benchmarks.studies.train.study import RECIPES, Choice, Study, jobs
from benchmarks.studies.train.tasks import TASKS
from benchmarks.studies.train.variants import (
    CONTROLS,
    HELD_OUT,
    STUDIED,
    VARIANTS,
    Variant,
    with_references,
)

VARIANT = VARIANTS[0]


def _study(path: Path, cells: list[dict[str, Any]]) -> Study:
    path.write_text(json.dumps({"machine": facts.collect(), "recipes": RECIPES, "cells": cells}))
    return Study(path)


def _cells(part: str, label: str, losses: list[float], **place: str) -> list[dict[str, Any]]:
    return [
        {"part": part, **place, "seed": seed, "commit": "a", "label": label, "final_loss": loss}
        for seed, loss in enumerate(losses)
    ]


def test_names_are_unique_and_what_they_refer_to_exists() -> None:
    assert len({v.label for v in VARIANTS}) == len(VARIANTS)
    for label, method in STUDIED.items():
        assert method.label == label
        if isinstance(method, Variant):
            assert method.of in STUDIED or method.of in CONTROLS
    assert set(HELD_OUT) <= set(STUDIED)


def test_a_variant_is_measured_with_all_that_it_is_compared_with() -> None:
    assert isinstance(VARIANT, Variant)
    labels = with_references([VARIANT.label])
    assert labels == [*CONTROLS, VARIANT.of, VARIANT.label]
    first, second = jobs(Choice(["variants"], [], [], 2, [VARIANT.label]))
    assert first.labels == second.labels == labels
    assert (first.seed, second.seed) == (0, 1)
    held_out = list(jobs(Choice(["held-out-study"], [], [], 2, ["int8"])))
    assert [job.place["change"] for job in held_out] == [*RECIPES["held-out-study"]] * 2
    assert held_out[0].labels == [*CONTROLS, "int8"]


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [
        ([-0.010, -0.012, -0.011], "helps"),
        ([0.010, 0.012, 0.011], "does not help"),
        ([-0.0001, 0.0001, 0.0], "does not help"),
        ([-0.05, 0.05, 0.01], "undecided"),
    ],
)
def test_verdicts(tmp_path: Path, shifts: list[float], expected: str) -> None:
    base = [2.0, 2.1, 1.9]
    cells = _cells("variants", VARIANT.of, base)
    cells += _cells("variants", CONTROLS[0], [loss - 0.01 for loss in base])
    cells += _cells("variants", CONTROLS[1], [loss + 0.01 for loss in base])
    cells += _cells("variants", VARIANT.label, [b + s for b, s in zip(base, shifts, strict=True)])
    study = _study(tmp_path / "train.json", cells)
    of = figures.losses(study, "variants")
    against = figures.difference(of, VARIANT.label, VARIANT.of)
    assert against is not None
    assert against.mean == pytest.approx(sum(shifts) / 3)
    assert variants_report.verdict(against) == expected
    (row,) = (
        line for line in report.markdown(study, []).splitlines() if f"| {VARIANT.label} |" in line
    )
    assert row.endswith(f"| {expected} |")
    assert f"| {sum(shifts) / 3 + 0.01:+.4f} (" in row
    assert f"| {sum(shifts) / 3 - 0.01:+.4f} (" in row


def test_a_single_seed_is_no_verdict(tmp_path: Path) -> None:
    cells = _cells("variants", VARIANT.of, [2.0]) + _cells("variants", VARIANT.label, [2.1])
    of = figures.losses(_study(tmp_path / "train.json", cells), "variants")
    assert figures.difference(of, VARIANT.label, VARIANT.of) is None


def test_defaults_are_judged_where_they_were_not_chosen(tmp_path: Path) -> None:
    place = {"change": "another text"}
    cells = _cells("held-out-study", CONTROLS[0], [2.0, 2.1], **place)
    cells += _cells("held-out-study", CONTROLS[1], [1.9, 2.0], **place)
    cells += _cells("held-out-study", "int8", [2.001, 2.102], **place)
    cells += _cells("held-out-study", "PowerSGD 4", [2.05, 2.151], **place)
    cells += _cells("held-out-study", "1-bit Adam", [1.905, 2.004], **place)
    study = _study(tmp_path / "train.json", cells)
    ((what, goal, measured, reached),) = variants_report.goals(study)
    assert "another text" in what
    assert (goal, reached) == (BAR_IN_WORDS, False)
    assert measured == "2 of 3 (PowerSGD 4: +0.0505)"
    assert "| another text | 1-bit Adam | 2 | 1.9545 | +0.0045 (" in report.markdown(study, [])
    table = variants_report.held_out(study)
    assert table.startswith(
        "| method | seeds | another text |\n| --- | --- | --- |\n| int8 | 2 | +0.0015 ("
    )


def test_a_long_training_has_a_price_from_one_seed_on(tmp_path: Path) -> None:
    (job,) = jobs(Choice(["long"], [], [], 1, ["int8"]))
    assert job.labels == [*CONTROLS, "int8"]
    assert job.recipe["steps"] == 5000
    cells = _cells("long", CONTROLS[0], [2.0]) + _cells("long", "int8", [2.003])
    text = report.markdown(_study(tmp_path / "one.json", cells), [])
    assert "| int8 | 1 | 2.0030 | +0.0030 |" in text
    cells = _cells("long", CONTROLS[0], [2.0, 2.1]) + _cells("long", "int8", [2.003, 2.104])
    text = report.markdown(_study(tmp_path / "two.json", cells), [])
    assert "| int8 | 2 | 2.0535 | +0.0035 (" in text


def test_held_out_trainings_differ_from_the_study_in_one_thing() -> None:
    text = RECIPES["accuracy"]["gpt"]
    recipes = RECIPES["held-out-study"]
    for recipe in recipes.values():
        assert recipe != text
        assert recipe["steps"] == text["steps"]
    new, old = (
        next(TASKS["gpt"]({**r, "layers": 1, "dim": 8}).batches(0, 4, seed=1))[0]
        for r in (recipes["another text"], text)
    )
    assert not new.equal(old)


def test_schedules() -> None:
    cosine = TASKS["gpt"](RECIPES["accuracy"]["gpt"])
    trapezoid = TASKS["gpt"](RECIPES["held-out-study"]["another schedule"])
    assert cosine.learning_rate(500) == pytest.approx(0.5 * (1 + cos(pi / 2)))
    rates = [trapezoid.learning_rate(step) for step in (0, 49, 400, 700, 850, 999)]
    assert rates == pytest.approx([0.02, 1, 1, 1, 0.5, 0.001 / 0.3])


def test_another_optimizer_is_compared_with_itself_without_compression(tmp_path: Path) -> None:
    """It ends 0.5 lower by itself; compression costs it 0.03, and the method it changes 0.02."""
    label = "EF21 of the momentum, PowerSGD 4"
    base = [2.0, 2.1, 1.9]
    own = variants_report.base_of(label)
    assert own not in CONTROLS
    cells = _cells("variants", CONTROLS[0], base)
    cells += _cells("variants", "PowerSGD 4", [loss + 0.02 for loss in base])
    cells += _cells("variants", own, [loss - 0.5 for loss in base])
    losses = [loss - 0.47 + noise for loss, noise in zip(base, (0, 0.001, -0.001), strict=True)]
    cells += _cells("variants", label, losses)
    of = figures.losses(_study(tmp_path / "train.json", cells), "variants")
    gain = variants_report.against(of, label)
    assert gain is not None
    assert gain.mean == pytest.approx(0.01)
    assert variants_report.verdict(gain) == "does not help"
    assert variants_report.against(of, "PowerSGD 4") is None
