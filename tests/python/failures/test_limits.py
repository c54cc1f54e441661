"""A rank that may have no more files, threads or memory: an error, and no signal, on every rank."""

from __future__ import annotations

import pytest
from small_machine import End, Machine, run, why_not

pytestmark = [
    pytest.mark.beyond("gloo", "does not look at its limits first"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def limited(resource: str, more: int, **kwargs: float) -> Machine:
    """Rank 1 may have ``more`` of it."""
    return Machine(limits={"1": {resource: more}}, timeout=kwargs.get("timeout", 3.0))


def check(machines: list[Machine]) -> list[list[End]]:
    """No rank ends by a signal, and all that fail do so with a typed error."""
    all_ends = run(machines)
    for machine, ends in zip(machines, all_ends, strict=True):
        for end in ends:
            assert end.exit in (0, 3), f"{machine}: {end.exit}\n{end.output}"
            assert end.error_type in ("", "DistBackendError", "ValueError"), f"{machine}: {end}"
    return all_ends


def test_file_descriptors() -> None:
    machines = [limited("NOFILE", more) for more in (0, 1, 2, 6, 10, 14, 20, 25, 31, 45, 80)]
    all_ends = check(machines)
    for ends in all_ends[:6]:
        assert ends[1].exit == 3
        assert "file descriptors" in ends[1].error
        assert "ulimit -n" in ends[1].error
    assert all_ends[-1][1].exit == 0


def test_threads() -> None:
    machines = [limited("THREADS", more) for more in (0, 1, 2, 8)]
    all_ends = check(machines)
    for ends in all_ends[:3]:
        assert ends[1].exit == 3
        assert "thread" in ends[1].error
        assert "ulimit -u" in ends[1].error
    assert all_ends[-1][1].exit == 0


def test_address_space() -> None:
    mebi = 2**20
    machines = [limited("AS", more * mebi) for more in (0, 8, 32, 64, 128, 250, 1024)]
    all_ends = check(machines)
    for ends in all_ends[:5]:
        assert ends[1].exit == 3
        assert "address space" in ends[1].error or "thread" in ends[1].error, ends[1].error
    assert all_ends[-1][1].exit == 0
