"""What a process does at the moment, as the kernel shows it."""

from __future__ import annotations

import pathlib
import time

_PATIENCE_S = 60.0
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.01


def state_of(pid: int, thread: int | None = None) -> str:
    """Return the kernel's letter for a thread, by default the main one.

    R: it runs, or waits for a processor. S: it sleeps. T: it is stopped. Z: it has ended, and
    nobody has reaped it. X: there is none.
    """
    try:
        stat = pathlib.Path(f"/proc/{pid}/task/{thread or pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat.rpartition(")")[2].split()[0]


def wait_until_asleep(*pids: int) -> None:
    """Return when the main thread of each process sleeps for a while, as in a call that waits."""
    end = time.monotonic() + _PATIENCE_S
    for pid in pids:
        looks = 0
        while looks < _LOOKS:
            looks = looks + 1 if state_of(pid) == "S" else 0
            time.sleep(_BETWEEN_LOOKS_S)
            assert time.monotonic() < end, f"process {pid} does not sleep: {state_of(pid)}"
