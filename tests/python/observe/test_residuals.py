"""What codecs hold back: in ``q7x2.stats()``, in metrics, in the ledger, its report and ``top``."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import Given, attached
from ledger_files import Training
from policy_training import Script, given, gradients_of, step_of, treated
from q7x2 import cli
from q7x2.ledger import reader as ledger_reader
from q7x2.ledger import residuals as ledger_residuals
from q7x2.ledger.file import LedgerFile
from torch.nn.parallel import DistributedDataParallel as DDP


@contextmanager
def measuring(every: str) -> Iterator[None]:
    """Ranks outlive a test, so they set the variable themselves."""
    os.environ["Q7X2_MEASURE_RESIDUALS"] = every
    try:
        yield
    finally:
        del os.environ["Q7X2_MEASURE_RESIDUALS"]


def residual_norms(hook: Any) -> dict[str, float]:
    """By parameter, the root of the sum over the ranks of squared norms, from the hook's state."""
    (local,) = hook.state_dict()["local"].values()
    (residuals,) = [tensors for kind, tensors in local.items() if kind.endswith("residual")]
    norms = {}
    for name, tensor in residuals.items():
        square = tensor.double().square().sum()
        dist.all_reduce(square)
        norms[name] = square.sqrt().item()
    return norms


def gradient_norms(step: int) -> list[float]:
    ranks = dist.get_world_size()
    every = [gradients_of(step, rank=rank) for rank in range(ranks)]
    return [
        sum((one.double() / ranks).square().sum().item() for one in each) ** 0.5
        for each in zip(*every, strict=True)
    ]


def last_measured(number: int) -> dict[str, Any]:
    (hook,) = [each for each in q7x2.stats()["hooks"] if each["hook"] == number]
    return dict(hook)


@pytest.mark.ranks(2)
def test_every_second_step_is_measured() -> None:
    with measuring("2"):
        ddp, hook = attached(q7x2.Quantize("int4:g=128"), Given(3))
    number = hook.number
    held: list[dict[str, float]] = []
    for step in range(4):
        step_of(ddp, gradients_of(step))
        held.append(residual_norms(hook))
    ddp(gradients_of(4))  # takes the facts of step 3, which was not measured
    measured = last_measured(number)
    assert (measured["name"], measured["step"]) == ("Quantize", 2)
    expected = dict(zip(sorted(held[1]), gradient_norms(2), strict=True))
    squares = [0.0, 0.0]
    for name, each in measured["parameters"].items():
        assert each["gradient"] == pytest.approx(expected[name], rel=1e-4)
        assert each["residual"] == pytest.approx(held[1][name], rel=1e-4)
        assert each["relative_error"] == pytest.approx(held[1][name] / expected[name], rel=1e-3)
        squares[0] += expected[name] ** 2
        squares[1] += held[1][name] ** 2
    assert measured["relative_error"] == pytest.approx((squares[1] / squares[0]) ** 0.5, rel=1e-3)


@pytest.mark.ranks(2)
def test_sampling_is_invisible_to_policies_and_changes_no_bit() -> None:
    decisions = {0: q7x2.policy.Decision(), 2: treated(), 3: q7x2.policy.Decision()}
    results = []
    for every in ("0", "1"):
        policy = Script(decisions)
        with measuring(every):
            ddp, hook = given(q7x2.Quantize("int4:g=128"), policy)
        for step in range(4):
            grads = step_of(ddp, gradients_of(step))
        ddp(gradients_of(4))
        assert [bool(facts.gradients) for facts in policy.facts] == [False, False, True, False]
        assert last_measured(hook.number)["step"] == (2, 3)[int(every)]
        results.append([each.clone() for each in grads])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.ranks(2)
def test_sampling_goes_on_after_a_load_and_over_another_group() -> None:
    with measuring("2"):
        ddp, hook = attached(q7x2.Quantize("int4:g=128"), Given(3))
        step_of(ddp, gradients_of(0))
        state = hook.state_dict()
        for step in range(1, 4):
            step_of(ddp, gradients_of(step))
        hook.load_state_dict(state)  # the next step is the first one again
        for step in range(1, 3):
            step_of(ddp, gradients_of(step))
        moved = DDP(ddp.module, process_group=dist.new_group())
        hook.rebind(moved)
    for step in range(3, 5):
        step_of(moved, gradients_of(step))
    moved(gradients_of(5))
    measured = last_measured(hook.number)
    assert measured["step"] == hook.steps - 1 == 4
    assert sorted(measured["parameters"]) == sorted(residual_norms(hook))
    assert measured["relative_error"] > 0


@pytest.mark.ranks(1)
def test_a_value_that_is_no_number_is_refused() -> None:
    expected = "Q7X2_MEASURE_RESIDUALS=often: expected a whole number"
    with measuring("often"), pytest.raises(ValueError, match=expected):
        attached(q7x2.Quantize("int8"), Given(1))


class Writer:
    def __init__(self) -> None:
        self.written: dict[str, float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written[tag] = value


@pytest.mark.ranks(2)
def test_metrics_have_the_last_measurement() -> None:
    with measuring("1"):
        ddp, hook = attached(q7x2.Quantize("int4:g=128"), Given(3))
    for step in range(3):
        step_of(ddp, gradients_of(step))
    number = hook.number
    measured = last_measured(number)
    writer = Writer()
    q7x2.observe.Scalars(writer).log(0)
    assert writer.written[f"q7x2/relative_error/Quantize_{number}"] == measured["relative_error"]
    pytest.importorskip("prometheus_client")
    from q7x2.observe.metrics import Collector

    (norms,) = [each for each in Collector().collect() if each.name == "q7x2_codec_norm"]
    found = {
        (each.labels["parameter"], each.labels["of"]): each.value
        for each in norms.samples
        if each.labels["hook"] == f"Quantize {number}"
    }
    assert found["layers.1", "residual"] == measured["parameters"]["layers.1"]["residual"] > 0


def rows(steps: int) -> list[tuple[Any, ...]]:
    """Two parameters, whose gradients have the norms 3 and 4: of both together 5."""
    return [
        row
        for step in range(steps)
        for row in (
            (0, "TopK", step, "a.weight", 3.0, 0.0, "whole"),
            (0, "TopK", step, "<b>", 4.0, float(step), ""),
        )
    ]


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A job of four ranks, of which rank 0 has measured 11 steps."""
    add_clock = LedgerFile.add_clock

    def with_residuals(file: LedgerFile, *arguments: Any) -> None:
        if file.path.name.startswith("q7x2-rank0-"):
            file.add_residuals(rows(11))
        add_clock(file, *arguments)

    monkeypatch.setattr(LedgerFile, "add_clock", with_residuals)
    Training(steps=20).write(tmp_path)
    return tmp_path


def test_the_ledger_gives_back_what_was_measured(job: pathlib.Path) -> None:
    (hook,) = ledger_residuals.read(ledger_reader.read(job))
    assert hook.name == "TopK 0"
    assert [step for step, _ in hook.steps] == list(range(11))
    assert [facts.relative_error for _, facts in hook.steps] == pytest.approx(
        [step / 5 for step in range(11)]
    )
    assert hook.last["<b>"][0].residual == 10
    assert hook.last["a.weight"][1] == "whole"


def test_the_report_and_top_show_it(job: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(job)]) == 0
    page = (job / "report.html").read_text()
    assert "<h2>Residual and codec error over time</h2>" in page
    assert "TopK 0: residual / gradient" in page
    assert "<td>&lt;b&gt;</td><td>4</td><td>10</td><td>2.5</td>" in page
    points = re.findall(r'<polyline points="([^"]*)"', page)
    assert points[0].startswith("0.00,100.00 10.00,90.00 ")  # of 2, the top of the axis
    assert cli.main(["top", str(job), "--once"]) == 0
    assert "TopK 0, step 10: residual / gradient 2, most in <b> (2.5)" in capsys.readouterr().out


def test_without_measurements_there_is_no_section(tmp_path: pathlib.Path) -> None:
    Training(steps=5).write(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "Residual and codec error" not in (tmp_path / "report.html").read_text()


def test_a_full_file_forgets_the_oldest_steps(tmp_path: pathlib.Path) -> None:
    file = LedgerFile(tmp_path / "q7x2-rank0-h-1.sqlite", [("id", "INTEGER", "q")], {}, 1)
    file.add_residuals(rows(8))
    file.keep_to_limit()
    left = file.connection.execute("SELECT DISTINCT step FROM residual").fetchall()
    assert left == [(step,) for step in range(1, 8)]
    file.close()
