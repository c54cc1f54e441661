"""``python -m benchmarks turns``: when a build counts as slower than another."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.regress import turns

NAME = "latency-2"


def row(time: float, name: str = NAME, size: int = 4) -> dict[str, Any]:
    return {"bar": {"name": name}, "sizes": [{"size": size, "time": time}]}


@pytest.mark.parametrize(
    ("other", "this", "verdict"),
    [
        ((1.0, 1.1, 1.05), (1.2, 1.25, 1.3), "slower"),
        ((1.2, 1.25, 1.3), (1.0, 1.1, 1.05), "faster"),
        ((1.0, 1.1, 1.3), (1.2, 1.25, 1.4), "same"),  # they overlap
        ((1.0, 1.01, 1.02), (1.03, 1.04, 1.04), "same"),  # within the tolerance
    ],
)
def test_a_verdict_needs_turns_that_do_not_overlap(
    other: tuple[float, ...], this: tuple[float, ...], verdict: str
) -> None:
    assert turns.Pair(NAME, 4, other, this).verdict(0.05) == verdict


def test_rows_that_one_build_cannot_run_are_left_out() -> None:
    missing = {"bar": {"name": "int8"}, "not_measured": "no such backend"}
    (pair,) = turns.pairs([row(2), missing, row(4)], [row(1), row(9, "int8"), row(3)])
    assert pair == turns.Pair(NAME, 4, (2, 4), (1, 3))
    assert pair.ratio == pytest.approx(2 / 3)


def test_each_build_comes_first_in_every_second_turn() -> None:
    assert [turns.order(turn)[0] for turn in range(4)] == ["other", "this", "other", "this"]


def checkout(folder: Path, origin: str) -> Path:
    """A checkout whose interpreter finds q7x2 at `origin`."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{origin}\n")
    python.chmod(0o755)
    return folder


def test_a_checkout_without_a_build_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.venv: run \./dev build there"):
        turns.python_of(tmp_path)
    with pytest.raises(ValueError, match="has no q7x2"):
        turns.python_of(checkout(tmp_path / "unbuilt", "exit 1"))
    with pytest.raises(ValueError, match="which is not of"):
        turns.python_of(checkout(tmp_path / "copied", "echo /elsewhere/q7x2/__init__.py"))
    built = tmp_path / "built"
    checkout(built, f"echo {built}/python/q7x2/__init__.py")
    assert turns.python_of(built) == str(built / ".venv/bin/python")


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.5, 1)])
def test_the_exit_code_says_that_a_row_is_slower(
    slower: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs: list[str] = []

    def measured(python: str, names: list[str], blocks: int) -> list[dict[str, Any]]:
        assert (names, blocks) == ([NAME], 5)
        runs.append(python)
        return [row(1e-5 * (slower if python == sys.executable else 1))]

    monkeypatch.setattr(turns, "measured", measured)
    other = checkout(tmp_path / "other", f"echo {tmp_path}/other/q7x2/__init__.py")
    out = tmp_path / "turns.json"
    try:
        got = command.main(["turns", str(other), "--only", NAME, "--turns", "2", "--out", str(out)])
    except SystemExit as end:
        got = end.code
    assert got == code
    theirs = os.fspath(other / ".venv/bin/python")
    assert runs == [theirs, sys.executable, sys.executable, theirs]
    assert ("slower: latency-2" in capsys.readouterr().out) == (code == 1)
    assert out.exists()
