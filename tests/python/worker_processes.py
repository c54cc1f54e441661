"""The processes that a worker of pytest has started, directly or not.

They inherit an environment variable with the worker's mark, so they are also found after their
parents have ended. ``--dist`` runs several workers; each knows its own processes only.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Set

VARIABLE = "Q7X2_TEST_WORKER"


def mark_this_process() -> str:
    """Mark the processes that this one starts from now on.

    The mark of a process begins with the mark of the process that started it.
    """
    mark = f"{os.environ.get(VARIABLE, '')}/{os.getpid()}-{time.monotonic_ns()}"
    os.environ[VARIABLE] = mark
    return mark


class WorkerProcesses:
    """Finds the processes of this worker; looks at each process of the machine only once."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._me = os.getpid()
        self._is_ours: dict[int, bool] = {self._me: True}
        self.ever: set[int] = {self._me}  # all that were seen

    def alive(self) -> set[int]:
        """Those that have not ended, without this process."""
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for gone in self._is_ours.keys() - present:
            del self._is_ours[gone]
        for pid in sorted(present - self._is_ours.keys()):
            self._judge(pid)
        found = {pid for pid in present if self._is_ours.get(pid) and pid != self._me}
        return {pid for pid in found if not has_ended(pid)}

    def owns(self, pid: int) -> bool | None:
        """Whether a process is this worker's; None if it has ended and nobody knows."""
        if self._judge(pid) or pid in self.ever:
            return True
        return None if has_ended(pid) else False

    def descends(self, pid: int, ancestors: Set[int]) -> bool:
        """Whether a process is a child, or a child's child, of one of ``ancestors``."""
        above = parent(pid)
        while above > 1 and above != self._me:
            if above in ancestors:
                return True
            above = parent(above)
        return False

    def forget_ended(self) -> None:
        """The numbers of processes are used again, so those that have ended count no longer."""
        self.ever = self.alive() | {self._me}

    def standing(self) -> set[int]:
        """What serves all tests of this worker: the fork server, the zygote, resource trackers."""
        servers = ("multiprocessing.forkserver", "multiprocessing.resource_tracker", "zygote.py")
        return {
            pid
            for pid, is_ours in list(self._is_ours.items())
            if is_ours
            and pid != self._me
            and parent(pid) == self._me
            and any(server in command_line(pid) for server in servers)
        }

    def _judge(self, pid: int) -> bool:
        known = self._is_ours.get(pid)
        if known is None:
            known = self._is_ours[pid] = self._has_mark(pid) or self._is_descendant(pid)
            if known:
                self.ever.add(pid)
        return known

    def _has_mark(self, pid: int) -> bool:
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        start = f"{VARIABLE}=".encode() + self._mark
        return any(
            entry == start or entry.startswith(start + b"/") for entry in environment.split(b"\0")
        )

    def _is_descendant(self, pid: int) -> bool:
        # One that this process forks has the environment with which this process was started.
        above = parent(pid)
        return above > 1 and self._judge(above)


def parent(pid: int) -> int:
    """The process's parent; 0 if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def children(pid: int) -> set[int]:
    """The processes that the process's main thread has started."""
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return set()
    return set(map(int, text.split()))


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or waits only for its parent to ask for its exit code."""
    fields = _stat(pid)
    return not fields or fields[0] in "ZX"


def command_line(pid: int) -> str:
    try:
        text = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return " ".join(text.replace(b"\0", b" ").decode(errors="replace").split())


def describe(pid: int) -> str:
    """Return one line: the process, its command, and the sockets on which it listens."""
    text = f"process {pid}: {command_line(pid)[:160] or '(no command line)'}"
    ports = listening_ports(pid)
    return text + (f", listens on {', '.join(ports)}" if ports else "")


def listening_ports(pid: int) -> list[str]:
    """The TCP ports on which a process listens, in its own network namespace."""
    inodes = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(
                    str(pathlib.Path(f"/proc/{pid}/fd/{fd}").readlink()).removeprefix("socket:[")
                )
    ports = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows = pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
            for fields in map(str.split, rows):
                if fields[3] == "0A" and f"{fields[9]}]" in inodes:
                    ports.append(f"port {int(fields[1].rpartition(':')[2], 16)}")
    return ports


def kill(pids: set[int], seconds: float = 5.0) -> None:
    """End processes, and return when they have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + seconds
    while not all(map(has_ended, pids)) and time.monotonic() < end:
        time.sleep(0.01)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
