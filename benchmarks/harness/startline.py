"""A start line for the ranks of one machine: nobody passes before everyone has arrived.

A barrier of the backends under test would add its own skew, so this one is apart from them: a
small mapped file in which each rank counts its arrivals, on a cache line of its own. It works
across virtual hosts too, which share the file system.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_LINE_BYTES = 64
_TIMEOUT_S = 300.0
# Spinning keeps the ranks together to some microseconds; who waits longer sleeps, because a process
# that burns its time slice here would be passed over by the scheduler in the operation itself.
_SPIN_S = 200e-6
_SLEEP_S = 20e-6


class StartLine:
    def __init__(self, path: str, rank: int, world_size: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), world_size * _LINE_BYTES)
        self._counts = memoryview(self._map).cast("Q")
        self._step = _LINE_BYTES // 8
        self._mine = rank * self._step
        self._arrivals = 0

    @staticmethod
    def create(path: Path, world_size: int) -> None:
        path.write_bytes(bytes(world_size * _LINE_BYTES))

    def wait(self) -> None:
        """Arrives, and returns when all ranks have arrived as often as this one."""
        self._arrivals += 1
        self._counts[self._mine] = self._arrivals
        begin = time.monotonic()
        while min(self._counts[:: self._step]) < self._arrivals:
            waited = time.monotonic() - begin
            if waited < _SPIN_S:
                os.sched_yield()
            elif waited < _TIMEOUT_S:
                time.sleep(_SLEEP_S)
            else:
                raise TimeoutError(f"not all ranks reached the start line in {_TIMEOUT_S:g} s")
