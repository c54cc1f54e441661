"""Builds the module and the C++ tests with counters, in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ..paths import BUILD, ROOT

FOLDER = ROOT / "build" / "coverage"
PACKAGE = FOLDER / "package"  # holds q7x2 with the counting module, and sitecustomize.py
HERE = Path(__file__).resolve().parent


def build(jobs: int) -> None:
    """Raises ``CalledProcessError`` if CMake or the compiler fails."""
    settings = {
        "CMAKE_PROJECT_INCLUDE": HERE / "instrument.cmake",
        "Q7X2_TESTS": "ON",
        "Q7X2_INPLACE": "OFF",
        "Q7X2_ACCELERATOR": "OFF",
        "Q7X2_UNORDERED": "ON",
        "Python_EXECUTABLE": sys.executable,
        **_of_usual_build("Q7X2_CUDA", "Q7X2_CUDA_ARCHITECTURES", "Q7X2_WERROR"),
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    _run("cmake", "-S", str(ROOT), "-B", str(FOLDER), "-G", "Ninja", *given)
    targets = ["_C", "q7x2_tests", "coverage_exit"]
    _run("cmake", "--build", str(FOLDER), "-j", str(jobs), "--target", *targets)
    _link_package()


def _of_usual_build(*names: str) -> dict[str, str]:
    """Settings that decide whether the tests come from the compiler's cache."""
    cache = BUILD / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    found = dict(re.findall(r"^(\w+):\w+=(.*)$", text, re.MULTILINE))
    return {name: found[name] for name in names if name in found}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def _link_package() -> None:
    """A package q7x2 whose Python files are those of the checkout, and whose module counts."""
    shutil.rmtree(PACKAGE, ignore_errors=True)
    package = PACKAGE / "q7x2"
    package.mkdir(parents=True)
    for entry in (ROOT / "python" / "q7x2").iterdir():
        if entry.suffix != ".so" and entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for module in FOLDER.glob("_C*.so"):
        (package / module.name).symlink_to(module)
    site = HERE / "process" / "sitecustomize.py"
    (PACKAGE / site.name).symlink_to(site)


def environment(data: Path) -> dict[str, str]:
    """That of a measured process; coverage.py's settings and its files are in ``data``."""
    settings = data / "coveragerc"
    settings.write_text(
        "[run]\n"
        "core = ctrace\n"
        "parallel = true\n"
        "patch = _exit\n"
        f"data_file = {data / 'python'}\n"
        f"source = {ROOT / 'python' / 'q7x2'}\n"
        "disable_warnings = no-data-collected,module-not-imported,module-not-measured\n"
    )
    old = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "COVERAGE_PROCESS_START": str(settings),
        "LD_PRELOAD": str(FOLDER / "libcoverage_exit.so"),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE), *([old] if old else [])]),
    }
