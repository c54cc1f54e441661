"""The result file of a measured run: what ran, in both languages, and its totals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .build import FOLDER
from .cpp_lines import CppLines
from .python_lines import PythonLines


def result_file(level: str) -> Path:
    """``level`` is "quick", "whole" or "sample"."""
    return FOLDER / f"{level}.json"


def summary(cpp: CppLines, python: PythonLines, facts: Mapping[str, Any]) -> dict[str, Any]:
    """``files`` has lines that ran and all lines; ``ran`` the Python lines, by number."""
    cpp_files = {f: [sum(lines.values()), len(lines)] for f, lines in sorted(cpp.lines.items())}
    python_files = {f: [len(python.ran[f]), len(code)] for f, code in python.code.items()}
    return {
        **facts,
        "totals": {"csrc": _total(cpp_files), "python/q7x2": _total(python_files)},
        "files": {**cpp_files, **python_files},
        "ran": {file: sorted(lines) for file, lines in python.ran.items()},
        "never_called": sorted(
            f"{file}: {cpp.names[file, line]}"
            for (file, line), ran in cpp.functions.items()
            if not ran
        ),
    }


def _total(files: Mapping[str, list[int]]) -> list[int]:
    return [sum(ran for ran, _ in files.values()), sum(count for _, count in files.values())]


def write(level: str, result: Mapping[str, Any]) -> Path:
    path = result_file(level)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def show(result: Mapping[str, Any]) -> str:
    """Lines for a person: the totals, and the files with the most lines that never ran."""
    lines = [
        f"{name:12} {ran:6} of {count:6} lines  {100 * ran / max(count, 1):5.1f} %"
        for name, (ran, count) in result["totals"].items()
    ]
    worst = sorted(result["files"].items(), key=lambda item: item[1][0] - item[1][1])[:20]
    lines.append("most lines that never ran:")
    lines += [f"  {count - ran:5}  {file} ({ran} of {count})" for file, (ran, count) in worst]
    return "\n".join(lines)
