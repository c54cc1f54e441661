"""A failed test explains itself in the last 200 lines of the output."""

from __future__ import annotations

import pathlib
import random
import re

import inner_pytest
import pytest
from explain import Explanation, Section, layout
from inner_pytest import InnerRun

HANGS = "test_one_rank_raises_and_one_hangs[2r]"


SEED = 77
NAMES = "one_rank_raises or script or own_pool or never or seed_on_ranks"

# Of a run of pytest in a test. A busy machine takes minutes.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("-n1",), id="workers"),
        pytest.param((), id="alone", marks=pytest.mark.nightly("a second run of the same")),
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    # Without workers a test that does not stop ends the run.
    names = NAMES if request.param else NAMES.replace("never", "never_ends")
    folder = tmp_path_factory.mktemp("results")
    return inner_pytest.run("failing.py", folder, "-k", names, *request.param, seed=str(SEED))


def test_results(run: InnerRun) -> None:
    names = {HANGS, "test_script", "test_own_pool", "test_never_ends", "test_seed_on_ranks[2r]"}
    assert run.failed() - {"test_never_stops"} == names
    assert run.results["failed_count"] == len(run.failed())
    assert run.results["passed"] == 0
    assert run.results["seed"] == SEED
    assert run.results["durations"].keys() == {"samples/failing.py"}


def test_seed_and_load_are_at_the_end(run: InnerRun) -> None:
    assert f"Q7X2_RANDOM_SEED={SEED}" in run.lines[-2]
    assert re.search(r"load [\d.]+ .* runnable, cores .* busy, .* stolen, .* free", run.lines[-2])


def test_ranks_have_the_seed(run: InnerRun) -> None:
    chosen = random.Random(SEED).random()
    assert f"chosen {chosen}" in run.of("test_seed_on_ranks[2r]")


@pytest.mark.beyond("gloo", "has no flight record")
def test_ranks_explain_themselves(run: InnerRun) -> None:
    text = run.of(HANGS)
    command = (
        f"again: Q7X2_RANDOM_SEED={SEED} .* -m pytest 'tests/.*failing.py::{re.escape(HANGS)}'"
    )
    assert re.search(command, text)
    assert "rank 0: hung" in text
    assert "rank 1: error ValueError: the fault" in text
    assert len(re.findall(r"rank \d: failing.py:\d+ fail_on_one_rank", text)) == 2
    assert "q7x2-driver" in text
    assert len(re.findall(r"#\d+ all_reduce 4000 B float32 sum .* done in", text)) == 2
    assert "rank 0 begins" in text


def test_a_script_explains_itself(run: InnerRun) -> None:
    assert "rank 0, 1: script ended with 1 OSError: the script" in run.of("test_script")


def test_ranks_that_run_when_a_test_fails_are_explained(run: InnerRun) -> None:
    text = run.of("test_own_pool")
    # Rank 1 may have failed by then, or still run.
    assert re.search(r"rank 0(, 1)?: running", text)
    assert re.search(r"rank 0(, 1)?: failing\.py", text)


def test_what_runs_out_of_time_explains(run: InnerRun) -> None:
    text = run.of("test_never_ends")
    assert "not ended within 3 s" in text
    assert "nor stopped" not in text
    assert "time.sleep(100)" in text


def test_a_worker_that_does_not_stop_explains(run: InnerRun) -> None:
    if "test_never_stops" not in run.failed():
        pytest.skip("this run has no workers")
    text = run.of("test_never_stops")
    assert "not ended within 3 s, nor stopped 1 s later" in text
    assert "in test_never_stops" in text


def test_the_whole_text_is_in_a_file(run: InnerRun) -> None:
    (path,) = (run.folder / "failures").glob("*test_script.txt")
    assert str(path) in run.of("test_script")
    assert "what pytest reports" in path.read_text()
    assert (run.folder / "python-failures.txt").read_text().splitlines()[0] in run.lines


@pytest.mark.nightly("a minute: thirty pools fail")
@pytest.mark.beyond("gloo", "has no flight record")
def test_thirty_failures_are_explained(tmp_path: pathlib.Path) -> None:
    many = inner_pytest.run("failing.py", tmp_path, "-n2", "-k", "test_many")
    assert many.results["failed_count"] == 30
    for number in range(30):
        text = many.of(f"test_many[2r-{number}]")
        assert f"ranks: 0, 1 error ValueError: fault {number}" in text
        assert "stacks: 0, 1 failing.py" in text
        assert "flight records: 0 #" in text
        assert "again: Q7X2_RANDOM_SEED=" in text


def explanation(number: int, lines: int) -> Explanation:
    names = ["error", "ranks", "stacks", "flight records", "logs", "still running"]
    sections = [
        Section(name, f"short {name}", [[f"{name} {line}" for line in range(lines)]])
        for name in names
    ]
    return Explanation(f"test_{number}", "call", "python", sections)


@pytest.mark.parametrize("budget", [6, 7, 9, 12, 30, 100])
@pytest.mark.parametrize("length", [0, 1, 5, 200])
def test_layout_keeps_to_its_lines(budget: int, length: int) -> None:
    lines = layout(explanation(0, length), budget)
    assert len(lines) <= budget
    assert lines[1] == "   again: python"
    text = "\n".join(lines)
    for name in ("error", "ranks", "stacks", "flight records", "logs", "still running"):
        assert f"{name}:" in text


def test_layout_uses_what_room_there_is() -> None:
    lines = layout(explanation(0, 200), 100)
    assert len(lines) >= 95
    assert layout(explanation(0, 5), 100).count("     logs 4") == 1
