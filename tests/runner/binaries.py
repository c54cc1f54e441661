"""The GoogleTest binaries, and how each is run."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .paths import BUILD, ROOT

# With it C++ tests try all their cases instead of some (tests/cpp/level.h).
WHOLE = {"Q7X2_TEST_NIGHTLY": "1"}

# UCX as a guest, as the Python package has it: no hooks for memory, which take it 0.4 s.
GUEST = {"UCX_MEM_EVENTS": "n"}

# The settings of python/q7x2/_core/ucx.py: UCX's hooks in mmap, its handlers of signals and its
# service thread would get in the way of ThreadSanitizer. Why without cma: see `sanitize_calls` in
# `dev`.
SANITIZED = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_MEM_MALLOC_HOOKS": "n",
    "UCX_MEM_MALLOC_RELOC": "n",
    "UCX_MEM_EVENTS": "n",
    "UCX_VFS_ENABLE": "n",
    "UCX_TLS": "^cma",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1 "
    f"suppressions={ROOT}/tests/cpp/tsan.supp",
}

# All collectives again with threads that help, however few processors there are.
WITH_LANES = "*EveryAlgorithm*:*CodedAlgorithm*:*BalancedParts*:Coll*:Conc*:SparseAll*"

# Left to the nightly run, because they try very many cases: all Plans on a matrix of networks
# (GeneratorTest samples them), Plans for a thousand ranks, all algorithms once more with lanes,
# all selections under ThreadSanitizer.
LEFT_OUT = {
    "cpp": "*MatrixTest*:*AThousandRanks*:*TwoThousandCuts*",
    "lanes": "*EveryAlgorithm*:*CodedAlgorithm*",
    "threads": "Selected*",
}


@dataclasses.dataclass(frozen=True)
class Binary:
    """One way to run a test program; ``name`` stands before its tests in reports."""

    name: str
    target: str  # of CMake; also the file's name
    folder: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: str = "*"  # a filter of GoogleTest
    shards: int = 1
    patience: float = 300.0  # seconds for one test
    fixed_addresses: bool = False  # run without randomised addresses

    @property
    def path(self) -> Path:
        return BUILD / self.folder / self.target

    def command(self) -> list[str]:
        return ["setarch", "-R", str(self.path)] if self.fixed_addresses else [str(self.path)]

    def tests(self, nightly: bool, filters: Sequence[str] | None = None) -> list[str]:
        """``Suite.Name`` of all its tests at this level; of those that ``filters`` name, if given.

        A filter is ``binary:filter``. It may name tests that the quick level leaves out.
        """
        own = [f.partition(":")[2] for f in filters or [] if f.startswith(f"{self.name}:")]
        if filters is None or own == ["*"]:
            left_out = "" if nightly else LEFT_OUT.get(self.name, "")
            own = [f"{self.only}-{left_out}"]
        listed = subprocess.run(
            [*self.command(), "--gtest_list_tests", f"--gtest_filter={':'.join(own) or '-*'}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return _names(listed)


def _names(listed: str) -> list[str]:
    """``Suite.Name`` of the tests in the output of ``--gtest_list_tests``."""
    found, suite = [], ""
    for line in listed.splitlines():
        text = line.split("#")[0].rstrip()
        if text.startswith(" "):
            found.append(suite + text.strip())
        else:
            suite = text
    return found


def _randomised_too_far() -> bool:
    """ThreadSanitizer has fixed places for memory."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    return bits.exists() and int(bits.read_text()) > 28


def binaries() -> list[Binary]:
    """In the order in which they are built."""
    found = [
        Binary("cpp", "q7x2_tests", environment=GUEST, shards=6),
        Binary("lanes", "q7x2_tests", environment={**GUEST, "Q7X2_LANES": "2"}, only=WITH_LANES),
        Binary("fibres", "q7x2_fibres_tests", "tests/device/fibres", patience=600.0),
        Binary("libcuda", "q7x2_libcuda_tests", "tests/device/libcuda", environment=GUEST),
        Binary(
            "threads",
            "q7x2_thread_tests",
            environment=SANITIZED,
            shards=2,
            patience=600.0,
            fixed_addresses=_randomised_too_far(),
        ),
    ]
    known = targets()
    return [binary for binary in found if binary.target in known]


def targets() -> set[str]:
    """What CMake has targets for; CUDA's stand-ins need the headers of CUDA."""
    asked = subprocess.run(
        ["ninja", "-C", str(BUILD), "-t", "targets", "all"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split(":")[0].rsplit("/", 1)[-1] for line in asked.splitlines()}
