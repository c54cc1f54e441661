"""A start line for the ranks of one machine: nobody passes before everyone has arrived.

A barrier of the backends under test would add its own skew, so this one is apart from them: a
small piece of shared memory in which each rank counts its arrivals, on a cache line of its own. It
works across virtual hosts too, which share the file system.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

_LINE_BYTES = 64
_TIMEOUT_S = 300.0
# Spinning keeps the ranks together to some microseconds; who waits longer sleeps, because a process
# that burns its time slice here would be passed over by the scheduler in the operation itself.
_SPIN_S = 200e-6
_SLEEP_S = 20e-6


class StartLine:
    """Args:
    shared: memory of all ranks, as `memory` makes it for processes that are forked.
    """

    def __init__(self, shared: mmap.mmap, rank: int) -> None:
        self._counts = memoryview(shared).cast("Q")
        self._step = _LINE_BYTES // 8
        self._mine = rank * self._step
        self._arrivals = 0

    @staticmethod
    def memory(world_size: int) -> mmap.mmap:
        """Zeros that this process shares with those that it forks."""
        return mmap.mmap(-1, world_size * _LINE_BYTES)

    @classmethod
    def of_group(cls) -> StartLine:
        """One for the ranks of the default process group, which all call this."""
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size() * _LINE_BYTES
        path: list[Any] = [None]
        if rank == 0:
            handle, path[0] = tempfile.mkstemp(prefix="q7x2-start-line-")
            os.write(handle, bytes(size))
            os.close(handle)
        dist.broadcast_object_list(path, src=0)
        with open(path[0], "r+b") as file:
            line = cls(mmap.mmap(file.fileno(), size), rank)
        dist.barrier()
        if rank == 0:
            Path(path[0]).unlink()
        return line

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
