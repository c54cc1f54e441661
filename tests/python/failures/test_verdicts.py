"""The judges of the fault trials: they must be able to say no."""

from __future__ import annotations

import re

import pytest

from tests.faults import table
from tests.faults.contract import CELLS, EVENTS, pairs
from tests.faults.resources import Resources
from tests.faults.soak import growth
from tests.faults.verdict import Verdict, judge_error, judge_lateness, judge_signatures
from tests.faults.workload import Raised, Report

GOOD = "all_reduce (sequence 2) on rank 0 of 3 in group '0': rank 2 (pid 7 on h1) failed"


def report(text: str = GOOD, typed: bool = True, again: str | None = GOOD) -> Report:
    error = Raised("all_reduce", 1.0, 1.5, "DistBackendError", typed, text)
    after = None if again is None else Raised("all_reduce", 2.0, 2.25, "DistBackendError", True, "")
    return Report(0, error=error, next_error=after)


def problems(given: Report, culprits: tuple[int, ...] = (2,)) -> list[str]:
    verdict = Verdict()
    judge_error(verdict, given, culprits)
    return verdict.problems


def test_a_good_error_has_no_problems() -> None:
    verdict = Verdict()
    judge_error(verdict, report(), [2])
    assert verdict.problems == []
    assert verdict.next_call == 0.25


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (report(typed=False), "not a DistBackendError"),
        (report(text="all_reduce: rank 1 failed"), r"does not name rank \[2\]"),
        (report(text="all_reduce: rank 21 failed"), r"does not name rank \[2\]"),
        (report(text="rank 2 failed"), "does not name all_reduce"),
        (report(again=None), "the next call succeeded"),
        (Report(0), "no error was raised"),
        (Report(0, error=report().error, wrong="1 is not 2"), "wrong result: 1 is not 2"),
    ],
)
def test_what_is_wrong_is_found(given: Report, expected: str) -> None:

    assert any(re.search(expected, problem) for problem in problems(given)), problems(given)


def test_a_list_of_ranks_names_each() -> None:
    assert problems(report(text="all_reduce: waiting for ranks 1, 2 and 3")) == []
    assert problems(report(text="all_reduce: waiting for ranks 1 and 3"))


def test_a_late_rank_must_not_be_called_dead() -> None:
    verdict = Verdict()
    error = report(text="all_reduce: rank 2 has ended").error
    assert error is not None
    judge_lateness(verdict, 0, error)
    assert len(verdict.problems) == 1


def test_signatures_are_in_elements_or_bytes() -> None:
    error = report(text="4 elements here, 32 bytes there").error
    assert error is not None
    verdict = Verdict()
    judge_signatures(verdict, 0, error, [4, 8])
    assert verdict.problems == []
    judge_signatures(verdict, 0, error, [5])
    assert len(verdict.problems) == 1


def row(**changes: object) -> dict[str, object]:
    return {
        "event": "killed",
        "cell": "ring, one host",
        "where": "same host",
        "limit": 0.05,
        "trials": 3,
        "bad_trials": 0,
        "seconds": [0.01, 0.02, 0.03],
        **changes,
    }


def test_a_row_is_met_or_not() -> None:
    assert table.is_met(row())
    assert not table.is_met(row(bad_trials=1))
    assert not table.is_met(row(seconds=[0.01, 0.02, 0.06]))
    assert not table.is_met(row(seconds=[0.01, 0.02]))
    assert table.is_met(row(limit=None, seconds=[9.0, 9.0, 9.0]))


def test_leaks_are_found() -> None:
    before = [Resources(fds=50, threads=5, segments=1, rss=1 << 28)] * 3
    assert growth("rank 0", before, before[0]) == []
    leaking = Resources(fds=80, threads=20, segments=4, rss=1 << 30)
    assert len(growth("rank 0", before, leaking)) == 4


def test_every_event_and_cell_is_tried() -> None:
    assert {event.name for event, _ in pairs()} == {event.name for event in EVENTS}
    assert {cell.name for _, cell in pairs()} == {cell.name for cell in CELLS}
