"""Covering arrays, and that those of the hooks' tests have every pair of options."""

from __future__ import annotations

import importlib
import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hook_matrix import TESTS, every_hook
from pairs import covering, pairs, pairs_of
from seeds import seed

Pairs = set[tuple[tuple[str, str], ...]]


def all_pairs(cases: list[tuple[Any, ...]]) -> set[Any]:
    return {pair for case in cases for pair in pairs_of(case)}


# --- any options ----------------------------------------------------------------------------------


def test_each_two_values_meet() -> None:
    chance = random.Random(seed())
    for _ in range(50):
        shape = [chance.randint(1, 6) for _ in range(chance.randint(1, 5))]
        cases = list(itertools.product(*map(range, shape)))
        cases = [case for case in cases if chance.random() < 0.9]
        chosen = covering(cases)
        assert set(chosen) <= set(cases)
        assert len(set(chosen)) == len(chosen)
        assert all_pairs(chosen) == all_pairs(cases), shape
        assert covering(cases) == chosen


def test_few_cases_are_enough() -> None:
    """None can be smaller than the product of the two longest axes."""
    for shape, most in (((3, 3, 3), 11), ((2,) * 8, 9), ((20, 5, 3), 101), ((7,), 7)):
        chosen = covering(list(itertools.product(*map(range, shape))))
        assert len(chosen) <= most, (shape, len(chosen))


def test_cases_have_names_values_and_marks() -> None:
    cases = pairs({"one": 1, "two": 2}, ["x", "y"], [True], allowed=lambda n, s, b: n == 1 or b)
    assert [case.id for case in cases] == ["one-x-True", "one-y-True", "two-x-True", "two-y-True"]
    assert cases[3].values == (2, "y", True)
    assert all(not case.marks for case in cases)
    three = pairs([0, 1], [0, 1], [0, 1], allowed=lambda *case: sum(case) < 3)
    assert len(three) == 7
    left_out = [case for case in three if case.marks]
    assert left_out
    assert all(mark.name == "nightly" for case in left_out for mark in case.marks)


# --- the options of hooks -------------------------------------------------------------------------


def test_each_test_of_all_hooks_has_every_hook() -> None:
    for test, (hooks, layouts) in TESTS.items():
        quick = [case for case in every_hook(test).args[1] if not case.marks]
        assert {case.id.rsplit("-", 1)[0] for case in quick} == set(hooks), test
        assert {case.id.rsplit("-", 1)[1] for case in quick} == set(layouts), test


def cases_of(function: Any) -> Iterator[tuple[dict[str, str], bool]]:
    """The arguments of each case of a test, and whether the quick level leaves it out."""
    marks = getattr(function, "pytestmark", [])
    stacked = []
    for mark in marks:
        if mark.name != "parametrize":
            continue
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        stacked.append([(names, value) for value in mark.args[1]])
    for case in itertools.product(*stacked):
        arguments: dict[str, str] = {}
        left_out = any(mark.name == "nightly" for mark in marks)
        for names, value in case:
            if isinstance(value, type(pytest.param())):
                left_out |= any(mark.name == "nightly" for mark in value.marks)
                values = value.values
            else:
                values = value if len(names) > 1 else (value,)
            arguments |= {name: repr(v) for name, v in zip(names, values, strict=True)}
        yield arguments, left_out


def test_all_pairs_of_hook_options_meet_in_the_quick_level() -> None:
    folder = pathlib.Path(__file__).parent
    all_of_them: Pairs = set()
    quick: Pairs = set()
    for path in sorted(folder.glob("test_*hooks*.py")):
        module = importlib.import_module(path.stem)
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            for arguments, left_out in cases_of(function):
                found = set(itertools.combinations(sorted(arguments.items()), 2))
                all_of_them |= found
                quick |= set() if left_out else found
    assert len(all_of_them) > 100
    assert not all_of_them - quick
