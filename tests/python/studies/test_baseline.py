"""``./dev bench --baseline``: when a row counts as worse than an earlier result."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.regress import bars, baseline, goals, raw

QUIET = [0.98, 1.01, 1.0, 0.99, 1.02, 1.0, 1.01, 0.99, 1.0]
NOISY = [0.5, 2.0, 0.7, 1.5, 1.0, 0.6, 1.7, 0.8, 1.3]
NAME = "latency-2"


def cell(ratio: float, turns: list[float] = QUIET, speed: float = 1.0) -> dict[str, Any]:
    """Gloo takes `ratio` times as long as q7x2; `speed`: of the machine."""
    ours = [1e-5 / speed] * len(turns)
    theirs = [ratio * 1e-5 * turn / speed for turn in turns]
    backends = {"q7x2": {"block_medians": ours}, "gloo": {"block_medians": theirs}}
    return {"op": "all_reduce", "size": 4, "ranks": 2, "backends": backends}


def row(new: dict[str, Any]) -> dict[str, Any]:
    (bar,) = [bar for bar in goals.BARS if bar.name == NAME]
    return {"bar": bars.asdict(bar), "cells": [new], "sizes": [{"size": 4}]}


def change(old: dict[str, Any], new: dict[str, Any]) -> baseline.Change:
    (found,) = baseline.changes(row(new), [old])
    return found


def test_a_ratio_that_fell_is_worse() -> None:
    found = change(cell(20), cell(14))
    assert found.before == pytest.approx(20)
    assert found.now == pytest.approx(14)
    assert found.interval[0] <= found.factor <= found.interval[1]
    assert found.verdict(0.1) == "worse"
    assert found.verdict(0.5) == "same"
    assert change(cell(14), cell(20)).verdict(0.1) == "better"


def test_a_slower_machine_is_no_change() -> None:
    found = change(cell(20), cell(20, speed=0.3))
    assert found.factor == pytest.approx(1)
    assert found.verdict(0) == "same"


def test_noise_is_no_verdict() -> None:
    found = change(cell(20, NOISY), cell(16, NOISY))
    assert found.factor == pytest.approx(0.8)
    assert found.verdict(0.1) == "same"


def test_what_cannot_be_compared_is_left_out() -> None:
    without_gloo = cell(20)
    del without_gloo["backends"]["gloo"]
    assert list(baseline.changes(row(cell(20)), [without_gloo])) == []
    assert list(baseline.changes(row(cell(20, [1.0, 1.0])), [cell(20)])) == []
    assert list(baseline.changes(row(cell(20)), [cell(20) | {"size": 8}])) == []
    assert list(baseline.changes({"bar": row(cell(1))["bar"], "not_measured": "?"}, [])) == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "before.json"
    machine = {"time": "then", "cpu": "x"}
    path.write_text(json.dumps({"machine": machine, "rows": [{"bar": {"name": NAME}}]}))
    raw.write_raw(raw.raw_path(path), {NAME: [cell(20)]})
    return path


@pytest.mark.parametrize(("ratio", "code"), [(20, 0), (10, 1)])
def test_the_exit_code_says_that_a_row_is_worse(
    file: Path,
    ratio: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def measured(console: object, wanted: list[goals.Bar], *_: object) -> list[dict[str, Any]]:
        asked.extend(bar.name for bar in wanted)
        return [row(cell(ratio))]

    monkeypatch.setattr(baseline.bars, "measured_rows", measured)
    monkeypatch.setattr(baseline.facts, "describe", lambda machine: machine["cpu"])
    try:
        got = command.main(["--baseline", str(file), "--only", "latency-*"])
    except SystemExit as end:
        got = end.code
    assert got == code
    assert asked == [NAME]
    shown = capsys.readouterr().out
    assert "20.00x" in shown
    assert ("worse: latency-2" in shown) == (code == 1)


def test_a_baseline_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--baseline=no-such-commit"]) == 1
    assert "--baseline no-such-commit is no file, and no commit" in capsys.readouterr().err
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no x\.raw\.json\.gz beside it"):
        baseline.read_baseline(str(tmp_path / "x.json"))


def test_a_commit_has_its_results(tmp_path: Path, file: Path, monkeypatch: Any) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for old, new in ((file, "bars.json"), (raw.raw_path(file), "bars.raw.json.gz")):
        (results / new).write_bytes(old.read_bytes())
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "benchmarks"], ["commit", "-q", "-m", "results"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(baseline, "ROOT", tmp_path)
    monkeypatch.setattr(baseline, "RESULTS", results)
    figures, cells = baseline.read_baseline("HEAD")
    assert figures["rows"][0]["bar"]["name"] == NAME
    assert cells == {NAME: [cell(20)]}
