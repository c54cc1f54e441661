"""A rank that may have no more files, threads or memory: an error, and no signal, on every rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from small_machine import End, Machine, run, why_not

pytestmark = [
    pytest.mark.beyond("gloo", "does not look at its limits first"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# Of a rank that waits for one that could not tell it of its end.
PATIENCE_S = 3.0

MORE_STEPS = pytest.mark.nightly("more limits than the quick level")


def limit(resource: str, more: int) -> dict[str, dict[str, int]]:
    """Rank 1 may have ``more`` of it."""
    return {"1": {resource: more}}


def check(machines: list[Machine]) -> list[list[End]]:
    """No rank ends by a signal, and all that fail do so with a typed error."""
    all_ends = run(machines)
    for machine, ends in zip(machines, all_ends, strict=True):
        for end in ends:
            assert end.exit in (0, 3), f"{machine}: {end.exit}\n{end.output}"
            assert end.error_type in ("", "DistBackendError", "ValueError"), f"{machine}: {end}"
    return all_ends


def check_steps(resource: str, steps: Sequence[int], refused: int, *words: str) -> None:
    """Rank 1 fails with the first amounts, and says why; with the last it works."""
    *tight, enough = steps
    machines = [Machine(limits=limit(resource, more), timeout=PATIENCE_S) for more in tight]
    machines.append(Machine(limits=limit(resource, enough)))
    all_ends = check(machines)
    for ends in all_ends[:refused]:
        assert ends[1].exit == 3
        assert all(re.search(word, ends[1].error) for word in words), ends[1].error
    assert all_ends[-1][1].exit == 0, all_ends[-1]


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ((0, 14, 25, 80), 2),
        pytest.param((0, 1, 2, 6, 10, 14, 20, 25, 31, 45, 80), 6, marks=MORE_STEPS),
    ],
)
def test_file_descriptors(steps: Sequence[int], refused: int) -> None:
    check_steps("NOFILE", steps, refused, "file descriptors", "ulimit -n")


@pytest.mark.parametrize(
    ("steps", "refused"), [((0, 2, 8), 2), pytest.param((0, 1, 2, 8), 3, marks=MORE_STEPS)]
)
def test_threads(steps: Sequence[int], refused: int) -> None:
    check_steps("THREADS", steps, refused, "thread", "ulimit -u")


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ((0, 128, 1024), 2),
        pytest.param((0, 8, 32, 64, 128, 250, 1024), 5, marks=MORE_STEPS),
    ],
)
def test_address_space(steps: Sequence[int], refused: int) -> None:
    in_bytes = [step * 2**20 for step in steps]
    check_steps("AS", in_bytes, refused, "address space|thread")
