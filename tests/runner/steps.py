"""The steps of the nightly run: what each runs, how long it takes, and what it needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable

from .paths import TESTS

PYTEST = [sys.executable, "-m", "pytest", "-q", "--nightly"]
PARALLEL = ["-n", "3", "--dist", "loadfile"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One command. ``minutes`` is expected on two cores, until docs/nightly.md has a figure."""

    name: str
    command: list[str]
    minutes: float
    prepare: list[str] = dataclasses.field(default_factory=list)  # if it fails: skipped
    needs: tuple[str, ...] = ()  # of NEEDS

    def missing(self) -> str:
        """What this machine lacks, or nothing."""
        lacks = [NEEDS[need][1] for need in self.needs if not NEEDS[need][0]()]
        return "; ".join(lacks)


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "needs root, for network namespaces"),
    "network tools": (lambda: shutil.which("tc") is not None, "needs tc (iproute2)"),
    "coverage": (
        lambda: importlib.util.find_spec("coverage") is not None and bool(shutil.which("gcov")),
        "needs coverage.py and gcov",
    ),
}


def _pytest(name: str, minutes: float, *paths: str, parallel: bool = True) -> Step:
    options = PARALLEL if parallel else []
    return Step(name, [*PYTEST, *options, *paths], minutes)


# Of a folder of tests/python, expected; 3 if it is not here.
FOLDERS = {
    "cadence": 5,
    "calls": 3,
    "codecs": 1,
    "collectives": 5,
    "devices": 5,
    "embedding": 3,
    "failures": 8,
    "fsdp": 5,
    "groups": 5,
    "hooks": 12,
    "instruments": 6,
    "integrations": 5,
    "pages": 5,
    "plans": 15,
    "runner": 1,
    "studies": 5,
}


def _folders() -> list[Step]:
    """A step for each folder of tests/python, without the files that are steps of their own."""
    alone = {RELEASES, *(path for _, paths in LONG_FILES.values() for path in paths)}
    found = sorted({path.parent.name for path in TESTS.glob("*/test_*.py")})
    return [
        _pytest(
            name,
            FOLDERS.get(name, 3),
            f"tests/python/{name}",
            *(f"--ignore={path}" for path in sorted(alone) if f"/{name}/" in path),
        )
        for name in found
    ]


def _other_torch(version: str) -> Step:
    """The quick level with another torch. It is skipped if pip finds no such torch."""
    found = "" if version == "newest" else version.replace(".", r"\.") + r"\."
    ask = f"{sys.executable} -m pip index versions torch | grep -q 'Available.* {found}'"
    return Step(
        f"torch {version}",
        ["./dev", "test", "--torch", version],
        35,
        prepare=["bash", "-c", f"{ask} || {{ echo pip finds no torch {version}; exit 1; }}"],
    )


# One trial of each event in every cell of the failure contract, an event at a time.
RELEASES = "tests/python/failures/test_release.py"
# Files of failures/ and groups/ that take so long that each is a step of its own, with minutes.
LONG_FILES = {
    "small machines": (55, ["tests/python/failures/test_small_machines.py"]),
    "restarts": (20, ["tests/python/groups/test_restarts.py"]),
    "buffers and cycles": (
        15,
        ["tests/python/failures/test_buffers.py", "tests/python/failures/test_cycles.py"],
    ),
}


def _long_files() -> list[Step]:
    releases = {
        "ranks that die": "killed or exits or dead",
        "other events": "not killed and not exits and not dead",
    }
    return [
        *(
            _pytest(name, minutes, *paths, parallel=False)
            for name, (minutes, paths) in LONG_FILES.items()
        ),
        *(
            Step(
                f"release times, {half}",
                [*PYTEST, RELEASES, "-k", expression],
                35,
                needs=("root", "network tools"),
            )
            for half, expression in releases.items()
        ),
    ]


def steps() -> list[Step]:
    """All of them, in the order of the page."""
    return [
        Step("GoogleTest", [sys.executable, "-m", "tests.runner.whole_cpp"], 8),
        *_folders(),
        *_long_files(),
        Step(
            "libraries of the extra",
            [
                "build/nightly/integrations/bin/python",
                "-m",
                "pytest",
                "-q",
                "--nightly",
                "tests/python/integrations/test_integrations.py",
                "tests/python/integrations/test_launchers.py",
            ],
            16,
            prepare=[sys.executable, "-m", "tests.runner.integrations"],
        ),
        Step(
            "PyTorch's own suite",
            [sys.executable, "tests/python/upstream", "--of", "gloo", "--again"],
            25,
        ),
        _other_torch("2.11"),
        _other_torch("newest"),
        Step("sanitize address", ["./dev", "sanitize", "address"], 30),
        Step("sanitize thread", ["./dev", "sanitize", "thread"], 45),
        Step("sanitize calls", ["./dev", "sanitize", "calls"], 15),
        Step("soak", ["./dev", "soak", "1000"], 25, needs=("root",)),
        Step("fuzz", ["./dev", "fuzz", "--inputs", "10000000"], 12),
        Step(
            "coverage of the quick run",
            [sys.executable, "-m", "tests.runner.untested", "--measure"],
            30,
            needs=("coverage",),
        ),
        *_studies(),
    ]


def _studies() -> list[Step]:
    """Short forms of studies that judge the product, not the machine."""
    diagnoses = [sys.executable, "-m", "tests.diagnoses"]
    return [
        Step(
            f"study of {name}",
            [*diagnoses, name, *few, "--out", f"build/nightly/{name}.json"],
            minutes,
            needs=needs,
        )
        for name, few, minutes, needs in (
            ("causes", ["--runs", "3"], 10, ("root", "network tools")),
            ("verdicts", ["--trials", "2"], 10, ()),
        )
    ]
