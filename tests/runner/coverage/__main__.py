"""``python -m tests.runner.coverage``: runs the tests with counters, and says which lines ran."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..commit import describe
from . import cpp_lines, python_lines, report
from .build import FOLDER, build
from .measured_run import run_cpp, run_python


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m tests.runner.coverage",
        description="Line coverage of csrc and python/q7x2 by the quick run. Processes that are "
        "killed in the middle of a call write no counts; CUDA sources have none.",
    )
    result.add_argument("patterns", nargs="*", help="what pytest runs instead of all its tests")
    result.add_argument("--all", action="store_true", help="the whole suite (pytest --nightly)")
    result.add_argument("--cpp", default="*", metavar="FILTER", help="of GoogleTest; '' for none")
    result.add_argument("--level", help="name of the result file (quick, whole, or sample)")
    result.add_argument("--tests-of", type=Path, metavar="DIR", help="a checkout with other tests")
    result.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    result.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    result.add_argument("--build-only", action="store_true")
    result.add_argument("--add", action="store_true", help="to the counts of the last run")
    result.add_argument(
        "--pytest", nargs=argparse.REMAINDER, default=[], help="its other arguments, at the end"
    )
    return result


def main(given: Sequence[str] | None = None) -> int:
    """Returns 1 if a test failed; the result file is written all the same."""
    options = parser().parse_args(given)
    build(options.jobs)
    if options.build_only:
        return 0
    data = FOLDER / "data"
    if not options.add:
        shutil.rmtree(data, ignore_errors=True)
        cpp_lines.clear()
    data.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    arguments = [*options.patterns, *options.pytest, *(["--nightly"] if options.all else [])]
    python_code = run_python(arguments, data, options.workers, options.tests_of)
    python_seconds = time.monotonic() - began
    cpp = run_cpp(options.cpp, options.all, data, options.workers) if options.cpp else None
    facts = {
        "commit": describe(),
        "date": datetime.date.today().isoformat(),
        "pytest": {"exit_code": python_code, "seconds": round(python_seconds)},
        "cpp": {
            "passed": len(cpp.passed) if cpp else 0,
            "failed": sorted(cpp.failed) if cpp else [],
        },
    }
    counted = cpp_lines.read(options.jobs)
    result = report.summary(counted, python_lines.read(data), facts)
    partial = bool(options.patterns) or options.cpp != "*"
    level = options.level or ("sample" if partial else "whole" if options.all else "quick")
    path = report.write(level, result)
    print(report.show(result))
    print(f"{path}: {time.monotonic() - began:.0f} s")
    return 1 if python_code or (cpp and cpp.failed) else 0


if __name__ == "__main__":
    sys.exit(main())
