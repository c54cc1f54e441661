"""How busy the machine is: what a failed test is read with."""

from __future__ import annotations

import dataclasses
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class CpuTimes:
    """Clock ticks of all cores since the machine started."""

    total: int
    idle: int
    stolen: int  # by other virtual machines of the same host

    @classmethod
    def now(cls) -> CpuTimes:
        with open("/proc/stat") as file:
            # user nice system idle iowait irq softirq steal; the guests' times are in user's
            ticks = [int(field) for field in file.readline().split()[1:9]]
        return cls(sum(ticks), ticks[3] + ticks[4], ticks[7])


def describe(since: CpuTimes | None = None) -> str:
    """Return one line about the machine's load. Shares of the cores are those since ``since``."""
    averages = " ".join(f"{average:.1f}" for average in os.getloadavg())
    parts = [f"load {averages} on {os.cpu_count()} cores", f"{_runnable()} runnable"]
    if since is not None:
        now = CpuTimes.now()
        total = max(1, now.total - since.total)
        busy = 100 - 100 * (now.idle - since.idle) / total
        parts.append(f"cores {busy:.0f} % busy")
        parts.append(f"{100 * (now.stolen - since.stolen) / total:.0f} % stolen")
    parts.append(f"{_free_memory() / 2**30:.1f} GiB free")
    return ", ".join(parts)


def _runnable() -> int:
    """The number of threads that run or wait for a core."""
    running, _ = pathlib.Path("/proc/loadavg").read_text().split()[3].split("/")
    return int(running)


def _free_memory() -> int:
    """Bytes that programs can still get."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
