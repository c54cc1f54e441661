"""The conditions that tests are repeated under: an idle machine, busy cores, one core."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

# A process that keeps a core busy. The kernel ends it (PR_SET_PDEATHSIG) when its parent has ended.
BUSY_LOOP = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextlib.contextmanager
def condition(name: str) -> Iterator[None]:
    """Processes that this thread starts inside run under ``name``: "idle", "busy" or "one"."""
    conditions: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "idle": contextlib.nullcontext,
        "busy": busy_cores,
        "one": one_core,
    }
    with conditions[name]():
        yield


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Each core that this process may use is kept busy, at normal priority, by another process."""
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-c", BUSY_LOOP, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread, and what it starts, runs on one core only."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
