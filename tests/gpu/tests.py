"""The stages that run tests. A test that is skipped for want of a GPU has failed here."""

from __future__ import annotations

import json
import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.harness import ROOT
from tests.gpu import needs
from tests.gpu.build import package_environment, program
from tests.gpu.runner import Result, Session, StageFailed, StageSkipped

# C++ tests that need a GPU have this in their names.
CUDA_TESTS = "*Cuda*"
# Of these, pytest runs the tests that take the fixture `device`.
PYTHON_TESTS = "devices/test_device_*.py"
_UCX = {"UCX_MEM_EVENTS": "n"}  # as the Python package has it


def cuda(session: Session) -> Result:
    """Run the C++ tests that need a GPU: all of them must really run."""
    tests = program(session, "q7x2_tests")
    file = session.build / "cuda-tests.json"
    file.unlink(missing_ok=True)
    session.call(*(tests, f"--gtest_filter={CUDA_TESTS}", f"--gtest_output=json:{file}"), env=_UCX)
    return Result({"passed": count_passed(file)})


def count_passed(report: Path) -> int:
    """Return how many tests of GoogleTest's report ran; raise StageFailed if not all did."""
    suites = json.loads(report.read_text())["testsuites"]
    tests = [(suite["name"], test) for suite in suites for test in suite["testsuite"]]
    skipped = [f"{suite}.{test['name']}" for suite, test in tests if test["result"] != "COMPLETED"]
    if skipped:
        raise StageFailed(f"did not run on the GPU: {', '.join(skipped)}")
    if not tests:
        raise StageFailed(f"no test is called {CUDA_TESTS}")
    return len(tests)


def cpp(session: Session) -> Result:
    """Run all C++ tests of this build."""
    program(session, "q7x2_tests")
    file = session.build / "ctest.xml"
    session.call(
        *("ctest", "--test-dir", session.build, "--output-on-failure"),
        *("-j", str(len(os.sched_getaffinity(0))), "--output-junit", file),
        *("-E", "NOT_BUILT"),  # tests of programs that are not for this machine
    )
    return Result({"passed": _passed(file)})


def python(session: Session) -> Result:
    """Run the Python tests of device tensors with CUDA tensors."""
    environment = package_environment(session)
    file = session.build / "pytest.xml"
    file.unlink(missing_ok=True)
    session.call(
        *(sys.executable, "-m", "pytest", "--device", "cuda", f"--junit-xml={file}"),
        *sorted((ROOT / "tests/python").glob(PYTHON_TESTS)),
        env=environment,
    )
    return Result({"passed": _passed(file)})


def _passed(junit: Path) -> int:
    """Return how many tests of a JUnit report ran and passed; at least one must."""
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    passed = sum(1 for case in cases if case.find("skipped") is None)
    if passed == 0:
        raise StageFailed("every test was skipped")
    return passed


def sanitizer(session: Session, tool: str) -> Result:
    """Run the C++ tests that need a GPU under a tool of compute-sanitizer."""
    found = shutil.which("compute-sanitizer")
    nvcc = needs.nvcc()
    if found is None and nvcc is not None:  # it comes with the toolkit, and is not always on PATH
        beside = Path(nvcc).resolve().with_name("compute-sanitizer")
        found = str(beside) if beside.exists() else None
    if found is None:
        raise StageSkipped("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    file = session.build / f"{tool}-tests.json"
    file.unlink(missing_ok=True)
    session.call(
        *(found, "--tool", tool, "--error-exitcode", "99", program(session, "q7x2_tests")),
        *(f"--gtest_filter={CUDA_TESTS}", f"--gtest_output=json:{file}"),
        env=_UCX,
    )
    return Result({"passed": count_passed(file)})
