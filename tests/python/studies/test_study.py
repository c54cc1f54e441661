"""What the study of hooks computes from its figures; nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("sklearn")

import q7x2
from q7x2._core.palette import line_style

from benchmarks.harness import facts, inference
from benchmarks.studies.train import figures, pictures, report, timeline, wire
from benchmarks.studies.train.cadence import CADENCE_BY_LABEL
from benchmarks.studies.train.methods import BASELINE, BY_LABEL, METHODS, UNCOMPRESSED
from benchmarks.studies.train.study import RECIPES, Choice, Job, Study, jobs
from benchmarks.studies.train.tasks import TASKS
from benchmarks.studies.train.timeline import Span


def test_time_to_a_loss_lies_between_the_values_around_it() -> None:
    times, values = [1.0, 2.0, 4.0], [5.0, 3.0, 1.0]
    assert inference.first_at_most(times, values, 2.0) == pytest.approx(3.0)
    assert inference.first_at_most(times, values, 3.0) == 2.0
    assert inference.first_at_most(times, values, 9.0) == 1.0
    assert inference.first_at_most(times, values, 0.5) is None


def test_holm_keeps_the_order_and_never_goes_down() -> None:
    assert inference.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert inference.holm([0.9, 0.8]) == [1.0, 1.0]
    assert inference.holm([]) == []


def test_paired_differences() -> None:
    # Mean 3, standard error 1 / sqrt(3), two degrees of freedom.
    result = inference.paired([2.0, 3.0, 4.0])
    assert result.mean == 3.0
    assert result.high - result.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert result.p_differs == pytest.approx(0.03509, rel=1e-3)


def test_equal_differences_leave_no_doubt() -> None:
    assert inference.paired([0.0, 0.0]).p_differs == 1
    assert inference.paired([0.2, 0.2]).p_differs == 0


@pytest.mark.parametrize(
    ("prices", "meets"),
    [
        ([0.0049, 0.0049], True),  # little
        ([0.0051, 0.0051], False),
        ([0.3, -0.1, 0.2], True),  # nothing that can be shown
        ([0.3, 0.29, 0.31], False),
        ([-0.3, -0.29, -0.31], True),
    ],
)
def test_the_bar_of_a_price(prices: list[float], meets: bool) -> None:
    assert inference.paired(prices).meets_bar is meets


@pytest.mark.parametrize("count", [6, 15, 60])
def test_the_interval_of_a_median_has_its_level(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    rounds = 2000
    inside = 0
    for _ in range(rounds):
        values = torch.rand(count, generator=generator).tolist()
        centre, low, high = inference.median_interval(values)
        assert low <= centre <= high
        inside += low <= 0.5 <= high
    assert inside / rounds > 0.93


def test_bytes_follow_from_shapes() -> None:
    shapes = [(8, 16), (8,), (64, 2, 2)]
    assert wire.dense(4)(shapes) == 4 * (128 + 8 + 256)
    assert wire.grouped(8, 512)(shapes) == pytest.approx(384 * (1 + 4 / 512) + 4 * 8)
    # 64 x 4 at rank 1: 68 for 256. 8 x 16: 24 for 128.
    assert wire.powersgd(1)(shapes) == 2 * 24 + 4 * 8 + 2 * 68
    assert wire.powersgd(1, factor_bytes=4)(shapes) == 4 * (24 + 8 + 68)
    assert wire.powersgd(1, alternating=True)(shapes) == 2 * 12 + 4 * 8 + 2 * 34
    # At rank 4 neither gets twice as small.
    assert wire.powersgd(4)(shapes) == wire.dense(4)(shapes)
    assert wire.per_rank(100, 4) == 150
    assert wire.payload(1000, 2) == 1000 - 2 * 66


@pytest.mark.ranks(2)
def test_hooks_send_what_the_formula_says() -> None:
    from torch.nn.parallel import DistributedDataParallel

    for method in METHODS:
        if method.backend != "q7x2" or method.message_bytes is None:
            continue
        torch.manual_seed(0)
        ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(512, 256)))
        attached = method.add(ddp, True)
        if attached is None:
            continue
        for _ in range(4):
            ddp(torch.randn(4, 512)).sum().backward()
        expected = method.message_bytes([tuple(p.shape) for p in ddp.parameters()])
        assert attached.stats.message_bytes / 4 == pytest.approx(expected, rel=0.01), method.label
    dist.barrier()


def test_busy_time_counts_no_moment_twice() -> None:
    spans = [Span(0, "collective", 0, 4), Span(1, "collective", 3, 6), Span(2, "collective", 8, 9)]
    assert timeline.busy(spans) == 7
    assert timeline.busy(spans, until=5) == 5
    assert timeline.shares(spans) == {0: 3.5, 1: 2.5, 2: 1.0}
    assert sum(timeline.shares(spans).values()) == timeline.busy(spans)


def test_an_ideal_schedule_sends_as_soon_as_it_can() -> None:
    work, ready = {0: 3.0, 1: 2.0, 2: 1.0}, {0: 1.0, 1: 2.0, 2: 10.0}
    assert timeline.ideal(work, ready, end=10) == 5.0  # 1-4, 4-6
    assert timeline.ideal(work, ready, end=5) == 4.0
    assert timeline.ideal(work, ready, end=1) == 0.0


@pytest.mark.parametrize("task", TASKS)
def test_ranks_share_a_batch_and_the_held_out_data(task: str) -> None:
    if task == "gpt":
        recipe = {**RECIPES["accuracy"]["gpt"], "layers": 1, "dim": 8}
    else:
        recipe = {**RECIPES["accuracy"]["digits"], "width": 4}
    trained = TASKS[task](recipe)
    model = trained.model()
    batches = [next(trained.batches(rank, 4, seed=1)) for rank in range(4)]
    assert all(
        torch.equal(a, b) for a, b in zip(batches[0], next(trained.batches(0, 4, 1)), strict=True)
    )
    assert not torch.equal(batches[0][0], batches[1][0])
    whole = trained.score(model, trained.held_out(0, 1))
    parts = sum(trained.score(model, trained.held_out(rank, 4)) for rank in range(4))
    torch.testing.assert_close(whole, parts)
    assert trained.loss(model, batches[0]).isfinite()


CHOICE = Choice(("speed", "accuracy"), ("100mbit",), ("digits",), 2, ("int8",))


def test_a_choice_always_has_what_it_is_compared_with() -> None:
    speed, *accuracy = jobs(CHOICE)
    assert set(speed.labels) == {BASELINE, "int8"}
    assert [job.seed for job in accuracy] == [0, 1]
    assert all(set(job.labels) == {UNCOMPRESSED, "int8"} for job in accuracy)
    (alone,) = jobs(Choice(["accuracy"], [], ["gpt"], 1, ["1-bit Adam"]))
    assert alone.labels == [UNCOMPRESSED, BY_LABEL["1-bit Adam"].uncompressed, "1-bit Adam"]


def _study(path: Path, cells: list[dict]) -> Study:
    path.write_text(json.dumps({"machine": facts.collect(), "recipes": RECIPES, "cells": cells}))
    return Study(path)


def _measured(job: Job, label: str) -> dict:
    return {"part": job.part, **job.place, "label": label}


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    speed, first, second = jobs(CHOICE)
    cells = [_measured(speed, "int8"), _measured(first, "int8")]
    study = _study(tmp_path / "train.json", cells)
    assert study.missing(first) == [UNCOMPRESSED]
    assert study.missing(second) == second.labels
    assert study.missing(speed) == speed.labels  # measured in turns, so all of them or none


def test_cells_are_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.json"
    study = Study(path)
    _, job, _ = jobs(CHOICE)

    def run(job: Job, spec: dict, *_: object) -> None:
        Path(spec["cells"]).write_text(json.dumps({"label": spec["labels"][0]}) + "\n")
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.studies.train.study._run", run)
    with pytest.raises(KeyboardInterrupt):
        study.measure(job, print)
    again = Study(path)
    assert [cell["label"] for cell in again.cells] == [UNCOMPRESSED]
    assert again.missing(job) == ["int8"]


def test_cells_of_another_recipe_are_refused(tmp_path: Path) -> None:
    speed, *_ = jobs(CHOICE)
    path = tmp_path / "train.json"
    recipes = {**RECIPES, "speed": {}}
    cells = [_measured(speed, "int8")]
    path.write_text(json.dumps({"machine": {}, "recipes": recipes, "cells": cells}))
    with pytest.raises(ValueError, match=r"another recipe; give --fresh with --parts speed"):
        Study(path)
    assert Study(path, forget=["speed"]).cells == []


def _speed_cell(label: str, seconds: float) -> dict:
    rounds = {
        "loss": [3.0, 2.0, 1.0],
        "held_out": [3.0, 2.0, 1.0],
        "reduced": [seconds] * 3,
        "step": [seconds] * 3,
        "seconds": [5 * seconds] * 3,
        "bytes": [1132.0] * 3,
        "packets": [2.0] * 3,
        "message_bytes": [0] * 3,
    }
    return {
        "part": "speed",
        "rate": "100mbit",
        "label": label,
        "turn": 5,
        "steps": 15,
        "parameters": 10,
        "formula_bytes": 1000 / 1.5,
        "compute": [0.5] * 3,
        "rounds": rounds,
    }


def test_figures_of_speed(tmp_path: Path) -> None:
    cells = [_speed_cell(BASELINE, 4.0), _speed_cell("int8", 1.0)]
    study = _study(tmp_path / "train.json", cells)
    base, ours = figures.speeds(study, "100mbit")
    assert (base.label, base.beyond[0], base.reached, base.sooner) == (BASELINE, 3.5, 60.0, 1.0)
    assert (ours.beyond[0], ours.reached, ours.sooner) == (0.5, 15.0, 4.0)
    assert ours.payload == pytest.approx(ours.expected)
    assert figures.ratio_beyond(study, "100mbit", "int8", BASELINE)[0] == 7.0


def test_a_baseline_that_was_better_before_is_timed_there(tmp_path: Path) -> None:
    cells = [_speed_cell(BASELINE, 4.0), _speed_cell("int8", 1.0)]
    cells[0]["rounds"]["held_out"] = [3.0, 0.5, 1.0]
    base, ours = figures.speeds(_study(tmp_path / "train.json", cells), "100mbit")
    assert (base.reached, base.sooner) == (36.0, 1.0)
    assert (ours.reached, ours.sooner) == (15.0, 36.0 / 15.0)


def _seed_cell(label: str, seed: int, loss: float) -> dict:
    return {
        "part": "accuracy",
        "commit": "abc",
        "task": "digits",
        "seed": seed,
        "label": label,
        "final_loss": loss,
        "accuracy": 0.9,
        "held_out": [2.0, loss],
        "every": 10,
    }


def test_figures_of_accuracy(tmp_path: Path) -> None:
    base = [1.0, 1.1, 0.9, 1.05, 0.95]
    differences = {"int8": [0.001, -0.001, 0.0, 0.002, -0.002], "int4": [0.5, 0.52, 0.48, 0.5, 0.5]}
    cells = [_seed_cell(UNCOMPRESSED, seed, loss) for seed, loss in enumerate(base)]
    for label, shifts in differences.items():
        cells += [
            _seed_cell(label, s, a + b) for s, (a, b) in enumerate(zip(base, shifts, strict=True))
        ]
    study = _study(tmp_path / "train.json", cells)
    results = figures.accuracies(study, "digits")
    verdicts = {result.label: result.verdict for result in results}
    assert verdicts == {UNCOMPRESSED: "-", "int8": "meets the bar", "int4": "costs more"}
    text = report.markdown(study, [])
    assert "| int4 | 5 | 1.5000 |" in text
    assert "1 of 2 (int4: +0.5000)" in text
    assert "Commits by part" not in text
    cells[0]["commit"] = "def"
    mixed = report.markdown(_study(tmp_path / "train.json", cells), [])
    assert "Commits by part: accuracy abc, def." in mixed


def test_every_method_has_a_name_of_its_own() -> None:
    assert len(BY_LABEL) == len(METHODS)
    assert q7x2.PowerSGD().rank == 4  # what "PowerSGD 4" calls the default


def test_no_two_methods_look_alike() -> None:
    styles = [pictures.style(method.label) for method in METHODS]
    looks = {(style["color"], str(style["linestyle"])) for style in styles}
    assert len(looks) == len(METHODS)
    assert len({str(line_style(i)) for i in range(len(CADENCE_BY_LABEL))}) == len(CADENCE_BY_LABEL)
