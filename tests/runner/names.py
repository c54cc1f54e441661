"""Which tests a pattern names, found in the sources without importing them."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence

from .paths import ROOT, TESTS

PYTHON_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
CPP_TEST = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)", re.M)


class UnknownPattern(ValueError):
    """A pattern that names no test."""


# Instance/Suite.Name/parameter, or Suite/type.Name for types.
CASE = re.compile(r"(?P<instance>\w+/)?(?P<suite>\w+)(?:/\d+)?\.(?P<name>\w+)(?P<parameter>/\S+)?")


@dataclasses.dataclass
class Chosen:
    """Tests of both languages: arguments of pytest, and ``binary:filter`` for GoogleTest."""

    python: list[str] = dataclasses.field(default_factory=list)
    cpp: list[str] = dataclasses.field(default_factory=list)


def choose(patterns: Sequence[str]) -> Chosen:
    """The tests whose name contains one of the patterns; raises ``UnknownPattern``.

    A test of pytest is named ``tests/python/folder/test_file.py::test_name``, one of GoogleTest
    ``tests/cpp/file_test.cpp::Suite.Name``. A pattern with the parameters of a test, as in
    reports (``test_name[2r]``, ``Sizes/Suite.Name/3``), names that case alone.
    """
    python, cpp = python_tests(), cpp_tests()
    chosen = Chosen()
    for pattern in patterns:
        in_python, in_cpp = _of_pytest(pattern, python), _of_googletest(pattern, cpp)
        if not in_python and not in_cpp:
            raise UnknownPattern(_unknown(pattern, [*python, *cpp]))
        chosen.python += in_python
        chosen.cpp += in_cpp
    chosen.python = list(dict.fromkeys(chosen.python))
    chosen.cpp = list(dict.fromkeys(chosen.cpp))
    return chosen


def _of_pytest(pattern: str, tests: Sequence[str]) -> list[str]:
    name, bracket, parameters = pattern.partition("[")
    if bracket:
        return [f"{test}[{parameters}" for test in tests if test.endswith(name)]
    return [test for test in tests if name in test]


def _of_googletest(pattern: str, tests: Mapping[str, str]) -> list[str]:
    case = CASE.fullmatch(pattern)
    if case and (case["instance"] or case["parameter"]):
        name = f"::{case['suite']}.{case['name']}"
        return [f"{_binary(test)}:{pattern}" for test in tests if test.endswith(name)]
    return [f"{_binary(test)}:{filters}" for test, filters in tests.items() if pattern in test]


def _binary(test: str) -> str:
    """The name of the binary that has a test, by the folder of its file."""
    return test.partition("::")[0].split("/")[-2]  # cpp, fibres, libcuda


def python_tests() -> list[str]:
    """``tests/python/folder/test_file.py::test_name`` of every test of pytest."""
    found = []
    for path in sorted(TESTS.glob("*/test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}::{test}" for test in PYTHON_TEST.findall(path.read_text())]
    return found


def cpp_tests() -> dict[str, str]:
    """A filter of GoogleTest by ``tests/cpp/file_test.cpp::Suite.Name``."""
    found = {}
    for path in sorted([*ROOT.glob("tests/cpp/*.cpp"), *ROOT.glob("tests/device/*/*.cpp")]):
        for kind, suite, name in CPP_TEST.findall(path.read_text()):
            spread = {"TEST": f"{suite}.{name}", "TEST_F": f"{suite}.{name}"}
            filters = spread.get(kind, f"*{suite}/*.{name}:*{suite}.{name}/*")
            found[f"{path.relative_to(ROOT).as_posix()}::{suite}.{name}"] = filters
    return found


def _unknown(pattern: str, tests: Sequence[str]) -> str:
    """What to say of a pattern that names nothing."""
    case = CASE.fullmatch(pattern)
    wanted = f"{case['suite']}.{case['name']}" if case else pattern.partition("[")[0]
    separators = r"::|/" if "." in wanted else r"::|/|\."
    parts = {part.lower(): part for test in tests for part in re.split(separators, test)}
    near = difflib.get_close_matches(wanted.lower(), sorted(parts), n=5, cutoff=0.0)
    return f"no test has '{pattern}' in its name; the nearest names: " + ", ".join(
        parts[name] for name in near
    )
