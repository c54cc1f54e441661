"""A tiny run of `python -m benchmarks tensor_parallel`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import study
from benchmarks.studies import tensor_parallel
from tests import lab as lab_package


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
@pytest.mark.skipif(bool(lab_package.unavailable()), reason=str(lab_package.unavailable()))
def test_all_ways_send_as_much(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "tensor_parallel.json"
    small = ["--ranks", "2", "--rates", "1gbit", "--rounds", "1", "--layers", "1"]
    small += ["--sequence", "256", "--width", "256", "--hidden", "256"]
    study.main(tensor_parallel, [*small, "--out", str(out)])
    (case,) = json.loads(out.read_text())["cases"]
    shards = 4 * 128 * 256 * 4  # of two messages in the forward and two in the backward
    for name in tensor_parallel.WAYS:
        assert shards <= case["ways"][name]["bytes_sent"] < 1.2 * shards, name
    assert len(case["chunks"]) == 2
    said = capsys.readouterr().out
    assert "goal 1.20 x" in said
