"""Variables of the environment: those that q7x2 reads are known, and others are warned of."""

from __future__ import annotations

import pathlib
import re
import subprocess
import warnings
from collections.abc import Iterator

import interpreters
import pytest
from harness import ROOT
from q7x2._core import variables

GROUP = """
import warnings
warnings.simplefilter("always")
import torch.distributed as dist
for _ in range(2):
    dist.init_process_group("q7x2", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
"""

WITHOUT_FILES = """
import os, resource
import torch.distributed as dist
from q7x2._core import extension
extension.load()
store = dist.HashStore()
limit = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    dist.init_process_group("q7x2", store=store, rank=0, world_size=1)
except dist.DistBackendError as error:
    print(error)
"""


LIST = ROOT / "python" / "q7x2" / "_core" / "variables.py"


def texts(*patterns: str) -> Iterator[tuple[pathlib.Path, str]]:
    """The files of the repository whose paths match, but not the list of variables itself."""
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            if path.is_file() and path.suffix != ".pyc" and path != LIST:
                yield path, path.read_text()


def test_what_the_code_reads_is_known_and_nothing_else() -> None:
    read: set[str] = set()
    for _, text in texts("csrc/**/*.cpp", "csrc/**/*.h", "csrc/**/*.cu", "python/q7x2/**/*.py"):
        read |= set(re.findall(r'"(Q7X2_[A-Z0-9_]+)"', text))
    assert len(variables.KNOWN) == len(set(variables.KNOWN))
    assert set(variables.KNOWN) == read


def test_variables_of_pages_and_tools_are_known() -> None:
    """A page that names a variable which does not exist sends its reader the wrong way."""
    patterns = ("*.md", "docs/*.md", "examples/**/*.*", "benchmarks/**/*.py", "dev", ".ci/*")
    tests = ("tests/**/*.py", "tests/**/*.cpp", "tests/**/*.h")
    read = re.compile(r'(?:getenv\(|environ\.get\(|environ\[)"(Q7X2_[A-Z0-9_]+)"')
    # Not those of CMake (-DQ7X2_TESTS, cmake.define.Q7X2_CUDA), and not macros of C++.
    named = re.compile(r"(?<![\w.])(?:\$\{)?(Q7X2_[A-Z0-9_]+)\b(?!\()")
    found = {(name, path) for path, text in texts(*patterns) for name in named.findall(text)}
    found |= {(name, path) for path, text in texts(*tests) for name in read.findall(text)}
    assert {name for name, _ in found} >= {"Q7X2_ALGO", "Q7X2_TEST_RESULTS", "Q7X2_TORCH"}
    known = (*variables.KNOWN, *variables.OF_DEVELOPMENT)
    strange = {
        (name, str(path.relative_to(ROOT)))
        for name, path in found
        if name not in known and not name.startswith(variables.OF_DEVELOPMENT)
    }
    assert strange == set()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Q7X2_ALGORITHM", "Q7X2_ALGO"),
        ("Q7X2_ALGOS", "Q7X2_ALGO"),
        ("Q7X2_LEGDER", "Q7X2_LEDGER"),
        ("Q7X2_FABRIC_AGE", "Q7X2_FABRIC_MAX_AGE"),
        ("Q7X2_", None),
        ("Q7X2_XYZZY", None),
    ],
)
def test_the_nearest_name(name: str, known: str | None) -> None:
    assert variables.nearest(name) == known


def test_variables_of_others_are_not_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    before = variables.unknown()
    for name in (*variables.KNOWN, "Q7X2_RANDOM_SEED", "Q7X2_TEST_ANY", "Q7X2_JOBS", "UCX_Q7X2_"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("Q7X2_EMPTY", "")
    assert variables.unknown() == before
    monkeypatch.setenv("Q7X2_WRONG", "1")
    assert variables.unknown() == sorted([*before, "Q7X2_WRONG"])


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreters.python(), "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """What a program that makes two groups, one after the other, writes to stderr."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = ended(GROUP)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_process_warns_once_of_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(monkeypatch, Q7X2_ALGOS="ring", Q7X2_XYZZY="secret", Q7X2_TEST_OF_A_USER="1")
    warned = re.findall(r"Warning: (.*)", said)
    assert sorted(warned) == [
        "q7x2: the variable Q7X2_ALGOS has no effect; did you mean Q7X2_ALGO?",
        "q7x2: the variable Q7X2_XYZZY has no effect; docs/reference.md lists those that have one",
    ]
    assert "secret" not in said


def test_known_variables_are_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no effect" not in run(monkeypatch, Q7X2_ALGO="ring", Q7X2_RANDOM_SEED="7")


def test_a_warning_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may open nothing more warns as well, and says why it makes no group."""
    monkeypatch.setenv("Q7X2_ALGOS", "ring")
    done = ended(WITHOUT_FILES)
    assert "did you mean Q7X2_ALGO?" in done.stderr
    assert "ulimit -n" in done.stdout


def test_a_warning_that_is_an_error_comes_before_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("Q7X2_ALGOS", "ring")
    variables.warn_of_unknown.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="did you mean Q7X2_ALGO"):
            variables.warn_of_unknown()
