"""What ranks do, seen from outside: stacks, flight records, and where their threads wait."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection

# A rank that runs answers within milliseconds. A busy machine may take longer.
_PATIENCE = 3.0
_SETTLED = 0.05
_HEADER = "(most recent call first):"


def stacks(pids: Mapping[int, int], output: Callable[[int], str]) -> dict[int, str]:
    """Return what each rank printed after a signal that makes it print all its Python stacks.

    Args:
        pids: the process of each rank.
        output: returns what a rank has printed so far in this test.
    """
    before = {rank: len(output(rank)) for rank in pids}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + _PATIENCE
    seen = dict(before)
    since = time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.01)
        now = {rank: len(output(rank)) for rank in pids}
        if now != seen:
            seen, since = now, time.monotonic()
        is_silent = [r for r in pids if _HEADER not in output(r)[before[r] :] and _runs(pids[r])]
        if not is_silent and time.monotonic() - since >= _SETTLED:
            break
    return {rank: output(rank)[before[rank] :] for rank in pids}


def flight_records(
    pipes: Mapping[int, connection.Connection], pids: Mapping[int, int], directory: pathlib.Path
) -> dict[int, tuple[str, str]]:
    """Ask the witness of each rank for its flight record.

    Returns:
        Of each rank its record (JSON), and why there is none.
    """
    number = time.monotonic_ns()
    answers = dict.fromkeys(pipes, ("", "the rank does not answer"))
    asked: dict[connection.Connection, int] = {}
    for rank, pipe in pipes.items():
        if not _runs(pids[rank]):
            answers[rank] = ("", "the rank is stopped or gone")
            continue
        with contextlib.suppress(OSError):
            pipe.send((number, str(directory / f"flight{rank}.json")))
            asked[pipe] = rank
    end = time.monotonic() + _PATIENCE
    while asked and (left := end - time.monotonic()) > 0:
        for pipe in connection.wait(list(asked), left):
            assert isinstance(pipe, connection.Connection)
            rank = asked[pipe]
            try:
                answered, problem = pipe.recv()
            except (EOFError, OSError):
                asked.pop(pipe)
                continue
            if answered != number:
                continue  # the late answer to an earlier request
            asked.pop(pipe)
            path = directory / f"flight{rank}.json"
            answers[rank] = ("", problem) if problem else (path.read_text(), "")
            path.unlink(missing_ok=True)
    return answers


def native_threads(pid: int) -> str:
    """Return one line: a process's threads, each with the kernel function in which it waits."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            place = (task / "wchan").read_text().strip()
            found.append(f"{name} {state if place in ('', '0') else place}")
    return "native threads: " + ", ".join(found)


def _runs(pid: int) -> bool:
    """Whether the process can answer: it is neither gone nor stopped."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZXTt"
