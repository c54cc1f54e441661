"""Reads the lines of python/q7x2 that coverage.py has seen in all processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..paths import ROOT

PACKAGE = ROOT / "python" / "q7x2"


@dataclasses.dataclass
class PythonLines:
    """By file: the lines that have code, and those of them that have run."""

    code: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    ran: dict[str, set[int]] = dataclasses.field(default_factory=dict)


def read(data: Path) -> PythonLines:
    """Merges the files that the processes have left in ``data``."""
    import coverage

    # Read one by one: coverage.py's own way to combine files takes far longer for thousands.
    ran: dict[str, set[int]] = {}
    for file in data.glob("python.*"):
        seen = coverage.CoverageData(str(file))
        seen.read()
        for source in seen.measured_files():
            ran.setdefault(source, set()).update(seen.lines(source) or ())
    measured = coverage.Coverage(data_file=None, config_file=False, messages=False)
    measured.exclude("if TYPE_CHECKING:")
    measured.get_data().add_lines(ran)
    result = PythonLines()
    for path in sorted(PACKAGE.rglob("*.py")):
        _, code, _, missing, _ = measured.analysis2(str(path))
        name = path.relative_to(ROOT).as_posix()
        result.code[name] = set(code)
        result.ran[name] = set(code) - set(missing)
    return result
