"""Reads gcov's counters of all object files, and merges them by line and by function."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ..paths import ROOT
from .build import FOLDER

SOURCES = "csrc/"


@dataclasses.dataclass
class CppLines:
    """``lines[file][number]`` and ``functions[file, number]``: whether it has run.

    A template's or an inline function's lines have run if they have in one object file.
    """

    lines: dict[str, dict[int, bool]] = dataclasses.field(default_factory=dict)
    functions: dict[tuple[str, int], bool] = dataclasses.field(default_factory=dict)
    names: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)  # demangled

    def add(self, report: dict[str, Any]) -> None:
        """What ``gcov --json-format`` has written about one object file."""
        folder = Path(report["current_working_directory"])
        for part in report["files"]:
            path = os.path.relpath(folder / part["file"], ROOT)
            if not path.startswith(SOURCES):
                continue
            lines = self.lines.setdefault(path, {})
            for line in part["lines"]:
                number = line["line_number"]
                lines[number] = lines.get(number, False) or line["count"] > 0
            for function in part["functions"]:
                self._add_function(path, function)

    def _add_function(self, path: str, function: dict[str, Any]) -> None:
        if not is_external(function["name"], function["demangled_name"]):
            return
        key = path, function["start_line"]
        ran = function["execution_count"] > 0
        self.functions[key] = self.functions.get(key, False) or ran
        name = function["demangled_name"]
        self.names[key] = min(self.names.get(key, name), name)


def is_external(mangled: str, demangled: str) -> bool:
    """Whether other files can call a function by its name."""
    is_static = mangled.startswith("_ZL") or "(anonymous namespace)" in demangled
    return not is_static and "{lambda" not in demangled and "<unnamed" not in demangled


def clear() -> None:
    """Removes the counts of earlier runs."""
    for file in FOLDER.rglob("*.gcda"):
        file.unlink()


def read(jobs: int) -> CppLines:
    """Merges all object files of the instrumented build; those that never ran count as well."""
    found = CppLines()
    notes = sorted(FOLDER.glob("CMakeFiles/*.dir/csrc/**/*.gcno"))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for reports in pool.map(_gcov, notes):
            for report in reports:
                found.add(report)
    return found


def _gcov(notes: Path) -> list[dict[str, Any]]:
    # The files of torch and of the standard library have absolute names or lie elsewhere.
    command = ["gcov", "--json-format", "--stdout", "--relative-only", "--source-prefix", str(ROOT)]
    done = subprocess.run([*command, str(notes)], capture_output=True, check=True, cwd=FOLDER)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
