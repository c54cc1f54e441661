"""A tiny run of `python -m benchmarks blocks`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import study
from benchmarks.studies import blocks
from tests import lab as lab_package


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
@pytest.mark.skipif(bool(lab_package.unavailable()), reason=str(lab_package.unavailable()))
def test_blocks_of_zeros_are_not_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "blocks.json"
    small = ["--hosts", "3", "--rate", "100mbit", "--size", "2M", "--rounds", "2"]
    study.main(blocks, [*small, "--servers", "2", "--zeros", "0.8,0", "--out", str(out)])
    sparse, same, dense = json.loads(out.read_text())["cases"]
    size = 2 << 20
    # Its own blocks to their owners, and the sum of its share to the other ranks.
    assert 0.44 * size < sparse["ways"][blocks.OURS]["bytes_sent"] < 0.52 * size
    assert dense["ways"][blocks.OURS]["bytes_sent"] < 4 / 3 * 1.05 * size
    # Servers receive a rank's blocks once, and have the sums to send.
    assert same["served"] >= 2
    assert same["ways"][blocks.SERVED]["bytes_sent"] < 0.23 * size
    said = capsys.readouterr().out
    assert "80% zero" in said
    assert "goal 0.95 x" in said


@pytest.mark.parametrize("zeros", ["", "1.5", "-1"])
def test_shares_are_checked(zeros: str) -> None:
    with pytest.raises(ValueError, match="--zeros must be shares from 0 to 1"):
        study.main(blocks, [f"--zeros={zeros}"])
