"""``python -m tests.runner.untested``: public functions and options that no quick test enters.

It reads what ``python -m tests.runner.coverage`` has left, and compares it with tests/untested.txt.
A name that is new fails: someone has added a feature without a test, or has removed the last test
of one. A name that is no longer untested fails, too, until ``--write`` removes it. A name with
``sometimes`` before it may be entered or not: whether it is depends on the threads of a run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import public_names
from .coverage.__main__ import main as measure
from .coverage.report import result_file
from .paths import ROOT, TESTS
from .quick_sources import quick_tests

LIST = ROOT / "tests" / "untested.txt"
SOMETIMES = "sometimes "


def run(result: Path, known: Path, write: bool) -> int:
    """Returns 1 if names are new or gone, and 2 if there is no measured run."""
    if not result.exists():
        print(f"there is no {result}; run python -m tests.runner.coverage first", file=sys.stderr)
        return 2
    measured = json.loads(result.read_text())
    found = set(untested(measured))
    lines = known.read_text().splitlines() if known.exists() else []
    listed = {line for line in lines if line and not line.startswith("#")}
    sometimes = {name.removeprefix(SOMETIMES) for name in listed if name.startswith(SOMETIMES)}
    always = {name for name in listed if not name.startswith(SOMETIMES)}
    new, gone = sorted(found - always - sometimes), sorted(always - found)
    for name in new:
        print(f"new: no quick test enters {name}")
    for name in gone:
        print(f"gone: a quick test enters {name}, or it does not exist")
    if write:
        kept = [SOMETIMES + name for name in sometimes]
        known.write_text(HEAD + "\n".join(sorted([*(found - sometimes), *kept])) + "\n")
    print(f"{len(found)} names, {len(new)} new, {len(gone)} gone; measured at {measured['commit']}")
    return 1 if (new or gone) and not write else 0


HEAD = """# Public functions and options that no quick test enters; see docs/testing.md.
# `python -m tests.runner.untested --write` writes this file. It must not grow.
"""


def untested(measured: Mapping[str, Any]) -> list[str]:
    """Names, each with its kind: ``function``, ``option``, ``variable``, ``argument``, ``c++``."""
    functions = public_names.functions()
    names = [f"function {f.name}" for f in functions if never_entered(f, measured["ran"])]
    names += [f"c++ {name}" for name in measured["never_called"]]
    return sorted({*names, *unmentioned()})


UNMENTIONED = ("option ", "variable ", "argument ")


def unmentioned() -> set[str]:
    """The names of these kinds, which only the text of the tests decides about."""
    words = quick_tests(TESTS)
    passed = mentioned(words)
    names = [
        f"option {function.name}({option})"
        for function in public_names.functions()
        for option in function.options
        if option not in passed
    ]
    sources = product_sources()
    everywhere = words + cpp_tests()
    names += [
        f"variable {name}"
        for name in public_names.variables(sources)
        if not re.search(rf"\b{name}\b", everywhere)
    ]
    commands = {path: text for path, text in sources.items() if path.endswith(".py")}
    names += [
        f"argument {name}"
        for name in public_names.arguments(commands)
        if not re.search(rf"{name}(?![\w-])", words)
    ]
    return set(names)


def never_entered(function: public_names.Function, ran: Mapping[str, Sequence[int]]) -> bool:
    """Whether no line of its body has run."""
    lines = ran.get(function.file)
    return bool(function.body) and lines is not None and function.body.isdisjoint(lines)


def mentioned(words: str) -> set[str]:
    """The names that tests pass as keywords, or have in quotes."""
    return {*re.findall(r"\b(\w+)\s*=", words), *re.findall(r"""["'](\w+)(?=["'])""", words)}


def product_sources() -> dict[str, str]:
    """The text of csrc and python/q7x2, by path."""
    paths = [
        path
        for folder in ("csrc", "python/q7x2")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".cpp", ".h", ".cu")
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def cpp_tests() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "cpp").glob("*.*")))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runner.untested", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write tests/untested.txt anew")
    parser.add_argument("--measure", action="store_true", help="first measure the quick run")
    options = parser.parse_args(given)
    failed = measure([]) if options.measure else 0
    return run(result_file("quick"), LIST, options.write) or failed


if __name__ == "__main__":
    sys.exit(main())
