"""A tiny run of `python -m benchmarks embedding`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import study
from benchmarks.studies import embedding
from tests import lab as lab_package


@pytest.mark.nightly("runs a benchmark; what it measures has tests of its own")
@pytest.mark.skipif(bool(lab_package.unavailable()), reason=str(lab_package.unavailable()))
def test_all_ways_train_alike_and_their_bytes_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "embedding.json"
    small = ["--hosts", "2", "--rows", "20000", "--dim", "8", "--steps", "2", "--out", str(out)]
    study.main(embedding, small)
    ways = json.loads(out.read_text())["ways"]
    assert list(ways) == list(embedding.WAYS)
    table = 20000 * 8 * 4
    rows = 40 * 8 * 4  # of a batch
    assert ways["DDP, dense, gloo"]["bytes_sent"] > table
    assert rows < ways[embedding.OURS]["bytes_sent"] < table / 10
    said = capsys.readouterr().out
    for name, figures in ways.items():
        assert len(figures["losses"]) == 3
        assert figures["alone"] > 0
        assert name in said


@pytest.mark.parametrize("share", ["0", "0.3"])
def test_a_share_of_the_rows_is_checked(share: str) -> None:
    with pytest.raises(ValueError, match=r"--share must be more than 0 and at most 0\.25"):
        study.main(embedding, ["--share", share])
