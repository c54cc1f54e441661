"""``./dev test --nightly``: parts, results that are kept, and the page."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.runner import figures, nightly, page
from tests.runner.steps import Step, steps

Program = Callable[..., Step]


def arguments(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"patterns": [], "part": None, "fresh": False, **given})


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The run writes here, at the commit ``abc``."""
    monkeypatch.setattr(nightly, "FOLDER", tmp_path / "nightly")
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "PAGE", tmp_path / "nightly.md")
    monkeypatch.setattr(nightly.commit, "describe", lambda: "abc")
    return tmp_path


@pytest.fixture
def has_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the steps by these."""

    def use(*given: Step) -> None:
        monkeypatch.setattr(nightly, "steps", lambda: list(given))

    return use


def step(name: str, program: str, minutes: float = 1, **more: Any) -> Step:
    """A step that notes in ``ran`` that it was run."""
    note = f"open('ran', 'a').write({name + ' '!r});"
    return Step(name, [sys.executable, "-c", note + program], minutes, **more)


def ran(folder: pathlib.Path) -> list[str]:
    return (folder / "ran").read_text().split() if (folder / "ran").exists() else []


def test_results_are_on_the_page(folder: pathlib.Path, has_steps: Callable[..., None]) -> None:
    has_steps(
        step("good", "print('3 passed, 1 skipped in 2.0s')"),
        step("bad", "print('1 failed, 2 passed in 2.0s'); raise SystemExit(1)"),
        step("absent", "", needs=()),
    )
    assert nightly.run(arguments(patterns=["good", "bad"])) == 1
    text = (folder / "nightly.md").read_text()
    assert "| good | ok |" in text
    assert "3 passed, 1 skipped |" in text
    assert "| bad | **failed** |" in text
    assert "| absent | never run | | | | |" in text
    assert "Commit `abc`" in text
    assert "1 ok, 1 failed, 0 skipped, 1 not run" in text


def test_a_failed_step_shows_the_end_of_its_output(
    folder: pathlib.Path, has_steps: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    has_steps(step("bad", "print('the reason'); raise SystemExit(1)"))
    nightly.run(arguments())
    assert "the reason" in capsys.readouterr().out


def test_a_step_is_run_once_for_a_commit(
    folder: pathlib.Path, has_steps: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_steps(step("one", ""), step("two", "raise SystemExit(1)"))
    assert nightly.run(arguments()) == 1
    assert nightly.run(arguments()) == 1  # the failure is remembered
    assert ran(folder) == ["one", "two"]
    assert nightly.run(arguments(patterns=["one"], fresh=True)) == 0
    assert ran(folder) == ["one", "two", "one"]
    monkeypatch.setattr(nightly.commit, "describe", lambda: "def")
    nightly.run(arguments(patterns=["two"]))
    assert ran(folder) == ["one", "two", "one", "two"]
    text = (folder / "nightly.md").read_text()
    assert "| one | not run for this commit; last: ok |" in text
    assert "| `abc` |" in text


def test_an_interrupted_run_goes_on(folder: pathlib.Path, has_steps: Callable[..., None]) -> None:
    interrupt = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(30)"
    has_steps(step("one", ""), step("two", interrupt))
    with pytest.raises(KeyboardInterrupt):
        nightly.run(arguments())
    has_steps(step("one", ""), step("two", ""))
    assert nightly.run(arguments()) == 0
    assert ran(folder) == ["one", "two", "two"]


def test_the_old_page_is_kept_without_a_state(
    folder: pathlib.Path, has_steps: Callable[..., None]
) -> None:
    has_steps(step("one", "print('5 passed')"), step("two", ""))
    nightly.run(arguments())
    (folder / "nightly" / "state.json").unlink()
    nightly.run(arguments(patterns=["two"]))
    assert "5 passed" in (folder / "nightly.md").read_text()


def test_a_step_that_lacks_something_is_skipped(
    folder: pathlib.Path, has_steps: Callable[..., None]
) -> None:
    no_network = [sys.executable, "-c", "raise SystemExit('no matching distribution')"]
    has_steps(step("one", "", prepare=no_network))
    assert nightly.run(arguments()) == 0
    assert ran(folder) == []
    text = (folder / "nightly.md").read_text()
    assert "| one | skipped |" in text
    assert "could not be prepared: no matching distribution" in text


def test_a_step_that_hangs_is_ended(
    folder: pathlib.Path, has_steps: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "LEAST_PATIENCE", 0.3 / 60)
    has_steps(step("one", "import time; time.sleep(60)", minutes=0.001))
    assert nightly.run(arguments()) == 1
    found = json.loads((folder / "nightly" / "state.json").read_text())["one"]["abc"]
    assert found["figures"].startswith("ended after")


def test_an_unknown_step_names_the_nearest(
    folder: pathlib.Path, has_steps: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    has_steps(step("sanitize thread", ""), step("soak", ""))
    assert nightly.run(arguments(patterns=["sanitise"])) == 2
    assert "nearest: sanitize thread" in capsys.readouterr().err


def test_parts_hold_every_step_once_and_are_balanced() -> None:
    known = steps()
    expected = {each.name: each.minutes for each in known}
    parts = nightly.fewest_parts(expected)
    divided = [nightly.of_part(known, expected, part, parts) for part in range(1, parts + 1)]
    names = [each.name for part in divided for each in part]
    assert sorted(names) == sorted(expected)
    assert all(sum(expected[s.name] for s in part) < nightly.HOUR for part in divided)


def test_a_part_is_run(folder: pathlib.Path, has_steps: Callable[..., None]) -> None:
    has_steps(step("long", "", minutes=10), step("a", "", minutes=4), step("b", "", minutes=5))
    nightly.run(arguments(part=(2, 2)))
    assert sorted(ran(folder)) == ["a", "b"]
    nightly.run(arguments(part=(1, 2)))
    assert sorted(ran(folder)) == ["a", "b", "long"]


def test_names_of_steps_are_unique() -> None:
    names = [each.name for each in steps()]
    assert len(set(names)) == len(names)


def test_every_folder_of_tests_has_a_step() -> None:
    tests = pathlib.Path(__file__).parents[1]
    commands = " ".join(" ".join(each.command) for each in steps())
    for folder in sorted({path.parent.name for path in tests.glob("*/test_*.py")}):
        assert f"tests/python/{folder}" in commands


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("...\n= 3 passed, 1 skipped in 2.0s =\n", "3 passed, 1 skipped"),
        ("100% tests passed, 0 tests failed out of 812\n", "0 tests failed out of 812"),
        ("seed 7\n10000000 inputs in 300 s, 0 failures\n", "10000000 inputs in 300 s, 0 failures"),
        ("no figure", ""),
    ],
)
def test_figures_are_found(output: str, found: str) -> None:
    assert figures.find(output) == found


def test_rows_survive_the_page(tmp_path: pathlib.Path) -> None:
    row = page.Row("ok", "2026-01-02", "abc", 3.0, "5 passed")
    path = tmp_path / "nightly.md"
    page.write(path, ["one", "two"], {"one": row}, "abc", "2026-01-02", 9)
    assert page.read(path) == {"one": row}
