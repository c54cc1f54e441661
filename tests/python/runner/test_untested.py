"""``python -m tests.runner.untested``: which names it finds, and that the list does not grow."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.runner import public_names, untested
from tests.runner.quick_sources import without_nightly

PACKAGE = {
    "__init__.py": '_NAMES = {"_private": ("exported", "Exported")}\n__all__ = ["__version__"]\n',
    "_private.py": """
def exported(x, option=1, *, keyword=None):
    "Documentation."
    return x

def hidden(secret=1):
    return 1

class Exported:
    def method(self, choice=2):
        return 1
    def _hidden(self, secret=2):
        return 1
""",
    "inner/__init__.py": '_NAMES = {"part": ("shown",)}\n',
    "inner/part.py": """
def shown(choice=1):
    return choice

def used_by_other_modules():
    return 1
""",
    "public.py": """
import dataclasses

@dataclasses.dataclass
class Options:
    needed: int
    given: int = 3

def run():
    return 1
""",
}


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_public_functions_and_options(package: pathlib.Path) -> None:
    found = {each.name: each.options for each in public_names.functions(package)}
    assert found == {
        "q7x2._private.exported": ("option", "keyword"),
        "q7x2._private.Exported.method": ("choice",),
        "q7x2.inner.part.shown": ("choice",),
        "q7x2.public.Options": ("given",),
        "q7x2.public.run": (),
    }


def test_a_function_is_entered_by_a_line_of_its_body(package: pathlib.Path) -> None:
    functions = {each.name: each for each in public_names.functions(package)}
    exported = functions["q7x2._private.exported"]
    assert exported.body == {4}
    assert untested.never_entered(exported, {exported.file: [2]})
    assert not untested.never_entered(exported, {exported.file: [2, 4]})
    assert not untested.never_entered(functions["q7x2.public.Options"], {})


def test_variables_and_arguments() -> None:
    text = 'getenv("Q7X2_LANES");  // Q7X2_ELSEWHERE\nparser.add_argument("-k", "--kind")\n'
    assert public_names.variables({"a": text}) == {"Q7X2_LANES"}
    assert public_names.arguments({"a": 'parser.add_argument("-k", "--kind")'}) == {"--kind"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("attach(model, bucket=3)", True),
        ('{"bucket": 3}', True),
        ("bucket_size=3", False),
        ("# the bucket", False),
    ],
)
def test_options_are_found_in_the_text_of_tests(words: str, found: bool) -> None:
    assert ("bucket" in untested.mentioned(words)) is found


NIGHTLY = """
AGAIN = pytest.mark.nightly("hours")

@pytest.mark.nightly("hours")
def test_long():
    f(first=1)

@AGAIN
@pytest.mark.ranks(2)
def test_again():
    f(second=1)

def test_short():
    f(third=1)
"""


def test_nightly_tests_do_not_count() -> None:
    text = without_nightly(NIGHTLY)
    assert "first" not in text
    assert "second" not in text
    assert "third" in text


@pytest.fixture
def result(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A measured run in which ``f`` and ``g`` were never entered."""
    monkeypatch.setattr(untested, "untested", lambda measured: measured["names"])
    path = tmp_path / "quick.json"
    path.write_text(json.dumps({"commit": "abc", "names": ["c++ f()", "c++ g()"]}))
    return path


@pytest.mark.parametrize(
    ("listed", "code", "said"),
    [
        ("c++ f()\nc++ g()\n", 0, "2 names, 0 new, 0 gone"),
        ("# why\n\nc++ f()\nc++ g()\n", 0, "2 names, 0 new, 0 gone"),
        ("c++ f()\n", 1, "new: no quick test enters c++ g()"),
        ("c++ f()\nc++ g()\nc++ h()\n", 1, "gone: a quick test enters c++ h()"),
        ("c++ f()\nsometimes c++ g()\nsometimes c++ h()\n", 0, "0 new, 0 gone"),
    ],
)
def test_the_list_does_not_grow(
    result: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    listed: str,
    code: int,
    said: str,
) -> None:
    known = result.parent / "untested.txt"
    known.write_text(listed)
    assert untested.run(result, known, write=False) == code
    assert said in capsys.readouterr().out
    assert known.read_text() == listed


def test_the_list_is_written(result: pathlib.Path) -> None:
    known = result.parent / "untested.txt"
    known.write_text("sometimes c++ g()\nc++ old()\n")
    assert untested.run(result, known, write=True) == 0
    names = [line for line in known.read_text().splitlines() if not line.startswith("#")]
    assert names == ["c++ f()", "sometimes c++ g()"]
    assert untested.run(result, known, write=False) == 0


def test_without_a_measured_run_it_says_what_to_do(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert untested.run(tmp_path / "quick.json", tmp_path / "list", write=False) == 2
    assert "python -m tests.runner.coverage" in capsys.readouterr().err


def test_the_tests_mention_every_name_that_is_not_listed() -> None:
    """What needs no counters is checked in every run."""
    listed = {
        line
        for line in untested.LIST.read_text().splitlines()
        if line.startswith(untested.UNMENTIONED)
    }
    found = untested.unmentioned()
    assert found - listed == set(), "no quick test uses these"
    assert listed - found == set(), "remove these from tests/untested.txt"
