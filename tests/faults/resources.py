"""What a process holds: file descriptors, threads, shared memory, memory."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """`segments` is shared memory that the process has created or mapped; `rss` is in bytes."""

    fds: int
    threads: int
    segments: int
    rss: int


def held() -> Resources:
    """By this process, after a collection of garbage."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return Resources(
        fds=len(os.listdir("/proc/self/fd")),
        threads=int(fields["Threads"]),
        segments=_segments(),
        rss=int(fields["VmRSS"].split()[0]) * 1024,
    )


def _segments() -> int:
    """Those of System V that this process created, and its mappings of System V and /dev/shm."""
    pid = str(os.getpid())
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    created = sum(line.split()[4] == pid for line in lines)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split()[4] for line in maps if "/dev/shm/" in line or "/SYSV" in line}
    return created + len(mapped)
