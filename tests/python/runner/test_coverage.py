"""``python -m tests.runner.coverage``: how counters are written, merged and summed up."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.runner.coverage import build, cpp_lines, report
from tests.runner.coverage.cpp_lines import CppLines
from tests.runner.coverage.python_lines import PythonLines

SOURCES = pathlib.Path(build.__file__).parent

HAS_GCOV = pytest.mark.skipif(
    not shutil.which("gcov") or not shutil.which("g++"), reason="needs g++ and gcov"
)


def object_file(file: str, lines: dict[int, int], functions: dict[str, Any]) -> dict[str, Any]:
    """What gcov says of an object file with one source."""
    return {
        "current_working_directory": str(cpp_lines.ROOT / "build"),
        "files": [
            {
                "file": file,
                "lines": [{"line_number": n, "count": count} for n, count in lines.items()],
                "functions": [
                    {
                        "name": f"_Z{name}",
                        "demangled_name": name,
                        "start_line": line,
                        "execution_count": count,
                    }
                    for name, (line, count) in functions.items()
                ],
            }
        ],
    }


def test_a_line_has_run_if_it_has_in_one_object_file() -> None:
    found = CppLines()
    found.add(object_file("../csrc/a.h", {1: 0, 2: 4}, {"q7x2::f<int>()": (1, 0)}))
    found.add(object_file("../csrc/a.h", {1: 7, 3: 0}, {"q7x2::f<char>()": (1, 7)}))
    assert found.lines == {"csrc/a.h": {1: True, 2: True, 3: False}}
    assert found.functions == {("csrc/a.h", 1): True}


def test_other_sources_are_left_out() -> None:
    found = CppLines()
    found.add(object_file("/usr/include/c++/12/vector", {1: 1}, {}))
    found.add(object_file("../tests/cpp/a_test.cpp", {1: 1}, {}))
    assert found.lines == {}


@pytest.mark.parametrize(
    ("mangled", "demangled", "external"),
    [
        ("_ZN4q7x21fEv", "q7x2::f()", True),
        ("_ZL1fv", "f()", False),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()", False),
        ("_ZZN4q7x21fEvENKUlvE_clEv", "q7x2::f()::{lambda()#1}::operator()() const", False),
    ],
)
def test_functions_that_other_files_can_call(mangled: str, demangled: str, external: bool) -> None:
    assert cpp_lines.is_external(mangled, demangled) is external


def test_totals_and_what_was_never_called() -> None:
    cpp = CppLines()
    cpp.add(object_file("../csrc/a.cpp", {1: 1, 2: 0}, {"f()": (1, 1), "g()": (2, 0)}))
    python = PythonLines(code={"python/q7x2/a.py": {1, 2, 3}}, ran={"python/q7x2/a.py": {1, 3}})
    result = report.summary(cpp, python, {"commit": "abc"})
    assert result["totals"] == {"csrc": [1, 2], "python/q7x2": [2, 3]}
    assert result["files"] == {"csrc/a.cpp": [1, 2], "python/q7x2/a.py": [2, 3]}
    assert result["never_called"] == ["csrc/a.cpp: g()"]
    assert "50.0 %" in report.show(result)


@HAS_GCOV
@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getppid(), 0)"])
def test_counters_of_ranks_are_written(tmp_path: pathlib.Path, ending: str) -> None:
    """A process writes its counters when it leaves by ``os._exit``, and when it simply ends."""
    (tmp_path / "counted.cpp").write_text('extern "C" int twice(int x) {\n  return 2 * x;\n}\n')
    compile_library(tmp_path, "exit", str(SOURCES / "exit.cpp"))
    compile_library(tmp_path, "counted", "--coverage", "counted.cpp", str(SOURCES / "register.cpp"))
    program = f"""
        import ctypes, os
        if os.fork() == 0:
            ctypes.CDLL("{tmp_path}/counted.so").twice(4)
            {ending}
        else:
            os.wait()
    """
    subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(program)],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "exit.so")},
        check=True,
    )
    shown = subprocess.run(
        ["gcov", "--json-format", "--stdout", *tmp_path.glob("*counted.gcda")],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    ).stdout
    [file] = [f for f in json.loads(shown)["files"] if f["file"] == "counted.cpp"]
    assert {line["line_number"]: line["count"] for line in file["lines"]} == {1: 1, 2: 1}


def compile_library(folder: pathlib.Path, name: str, *arguments: str) -> None:
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", f"{name}.so", *arguments]
    subprocess.run(command, cwd=folder, check=True)
