"""Patterns of ``./dev test``: what they name, and what is said of one that names nothing."""

from __future__ import annotations

import re

import pytest

from tests.runner.__main__ import main
from tests.runner.names import UnknownPattern, choose, cpp_tests, python_tests

HERE = "tests/python/runner/test_names.py"


def test_a_part_of_a_name_chooses_tests_of_both_languages() -> None:
    chosen = choose(["::Notifier.", "test_names.py"])
    assert chosen.cpp
    assert all(filters.startswith("cpp:Notifier.") for filters in chosen.cpp)
    assert f"{HERE}::test_a_part_of_a_name_chooses_tests_of_both_languages" in chosen.python


def test_a_test_with_its_parameters_is_that_case_alone() -> None:
    name = "test_a_test_with_its_parameters_is_that_case_alone"
    assert choose([f"{name}[2r-ring]"]).python == [f"{HERE}::{name}[2r-ring]"]
    suite = next(test for test, filters in cpp_tests().items() if "/*" in filters)
    case = f"Sizes/{suite.rpartition('::')[2]}/3"
    assert choose([case]).cpp == [f"cpp:{case}"]


def test_every_test_file_is_known() -> None:
    assert HERE in {test.partition("::")[0] for test in python_tests()}
    assert len(cpp_tests()) > 900


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("test_a_part_of_a_nam_chooses", "test_a_part_of_a_name"),
        ("Notifer", "Notifier"),
        ("NOTIFEIR", "Notifier"),
        ("Sizes/Notifeir.WakesSleeper/3", "Notifier."),
        ("TEST_NAMES", "test_names"),
        ("test_a_part_of_a_nam_chooses[2r]", "test_a_part_of_a_name"),
        ("zzzzqq", ""),
    ],
)
def test_an_unknown_pattern_lists_the_nearest_names(pattern: str, nearest: str) -> None:
    with pytest.raises(
        UnknownPattern, match=rf"'{re.escape(pattern)}'.*nearest names: .*{nearest}"
    ):
        choose([pattern])


@pytest.mark.parametrize("words", ["--again", "--repeat 2", "--binary cpp", "--record"])
def test_what_does_not_go_with_the_nightly_run(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--nightly", *words.split()])
    assert f"--nightly does not go with {words.split()[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--part 1/4", "--fresh"])
def test_what_is_for_the_nightly_run(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert f"{words.split()[0]} is for --nightly" in capsys.readouterr().err
