"""What the study `wan` trains, computes, and does not measure twice; nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from hook_training import everybodys_objects

from benchmarks.harness import study
from benchmarks.studies import wan
from benchmarks.studies.train.cadence import DILOCO
from benchmarks.studies.train.methods import BASELINE, UNCOMPRESSED
from tests.lab import wide

PARTS = [(wan.TURNS, label) for label in wan.IN_TURNS] + [
    (wan.ALONE, label) for label in (BASELINE, wan.ONE_CONNECTION)
]
TINY = {"layers": 1, "heads": 2, "dim": 16, "context": 16, "held_out": 8}

needs_lab = pytest.mark.skipif(bool(wide.unavailable()), reason=str(wide.unavailable()))


@pytest.mark.nightly("runs a study; each method has tests of its own")
@pytest.mark.ranks(2, deadline=300)
def test_every_method_trains() -> None:
    with mock.patch.object(wan, "RECIPE", {**wan.RECIPE, **TINY}):
        found = {
            label: wan._train({"method": label, "seed": 0, "steps": 30}) for label in wan.TRAINED
        }
        times = wan._times({"methods": wan.IN_TURNS, "seed": 0, "rounds": 1})
    for label, row in found.items():
        assert len(row["seconds"]) == len(row["held_out"]) == 1 + 30 // row["every"]
        assert row["seconds"] == sorted(row["seconds"])
        assert row["held_out"][-1] < row["held_out"][0], label
    assert all(len(times[label]["seconds"]) == 1 for label in wan.IN_TURNS)
    assert everybodys_objects(found[DILOCO]["held_out"]) == [found[DILOCO]["held_out"]] * 2


@pytest.mark.ranks(2)
def test_a_training_goes_on_until_it_has_reached_the_loss() -> None:
    method, steps = "int8", 20
    with mock.patch.object(wan, "RECIPE", {**wan.RECIPE, **TINY}):
        for target, most in ((100.0, 1), (0.0, wan.METHODS[method].patience)):
            spec = {"method": method, "seed": 0, "steps": steps, "target": target}
            row = wan._train(spec)
            assert len(row["held_out"]) == 1 + most * steps // row["every"]


def rows(steps: int = 30) -> list[dict[str, Any]]:
    """Gloo takes 10 s for a step, DDP 1 s, the others 0.5 s and reach the loss at the end."""
    seconds = {BASELINE: 10.0, wan.ONE_CONNECTION: 5.0, UNCOMPRESSED: 1.0}
    facts = {"topology": "two sites, rate 100mbit, rtt 100ms", "load_average": 1.0}
    made: list[dict[str, Any]] = [
        {
            "part": part,
            "method": label,
            "seed": 0,
            "rounds": 8,
            "seconds": [seconds.get(label, 0.5)] * 8,
            "bytes_sent": 1e6,
            "cpu_seconds": 0.1,
            **facts,
        }
        for part, label in PARTS
    ]
    for label in wan.TRAINED:
        every = wan.METHODS[label].every
        count = steps // every
        for seed, above in ((0, 0.0), (1, 0.0 if label == UNCOMPRESSED else 0.2)):
            made.append(
                {
                    "part": wan.TRAININGS,
                    "method": label,
                    "seed": seed,
                    "steps": steps,
                    "every": every,
                    "parameters": 250_000,
                    "seconds": [seconds.get(label, 0.5) * every * i for i in range(count + 1)],
                    "held_out": [5 - i * every / steps + above for i in range(count + 1)],
                    **facts,
                }
            )
    return made


def test_times_to_the_loss_and_prices() -> None:
    found = wan.compared(rows())
    reached = {label: each.reached for label, each in found.items()}
    others = {label: 15.0 for label in wan.TRAINED if label != UNCOMPRESSED}
    assert reached == {BASELINE: 300, wan.ONE_CONNECTION: 150, UNCOMPRESSED: 30, **others}
    assert found[UNCOMPRESSED].price == found[BASELINE].price == []
    assert found["int8"].price == pytest.approx([0.0, 0.2])
    text = wan.table(rows())
    assert "| 15 s | 20 x | +0.100 (+0.000 to +0.200) |" in text
    assert "| 300 s | 1 x | none |" in text


def test_a_method_that_does_not_reach_the_loss() -> None:
    worse = [
        {**row, "held_out": [each + 1 for each in row["held_out"]]}
        if row["method"] == DILOCO and row["part"] == wan.TRAININGS
        else row
        for row in rows()
    ]
    assert wan.compared(worse)[DILOCO].reached is None
    assert "| not reached | never |" in wan.table(worse)


@needs_lab
def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped goes on, and draws the picture when it has all that it shows."""
    out = tmp_path / "wan.json"
    arguments = ["--steps", "30", "--seeds", "2", "--out", str(out)]
    asked: list[dict[str, Any]] = []
    known = {wan.KEY(row): row for row in rows()}

    def run(spec: dict[str, Any], *_: object) -> dict[str, Any]:
        asked.append(spec)
        if len(asked) == 4:
            raise KeyboardInterrupt
        if spec["part"] != wan.TRAININGS:
            return {label: known[spec["part"], label, 0] for label in spec["methods"]}
        return known[wan.KEY(spec)]

    monkeypatch.setattr(wan, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        study.main(wan, arguments)
    assert not out.with_suffix(".png").exists()
    study.main(wan, arguments)
    assert len(asked) == 3 + len(wan.TRAINED) * 2 + 1  # what was stopped twice
    assert {wan.KEY(row) for row in json.loads(out.read_text())["rows"]} == known.keys()
    assert out.with_suffix(".png").exists()
    asked.clear()
    study.main(wan, arguments)
    assert asked == []
