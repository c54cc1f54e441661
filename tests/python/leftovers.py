"""What tests leave behind: processes, shared memory, virtual hosts, ports.

A ``Leftovers`` belongs to one worker of pytest. It compares two moments, and counts only what this
worker's processes made: other workers, and other programs of the machine, change the machine, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator

import worker_processes
from shm_openers import ShmOpeners
from worker_processes import WorkerProcesses

# What is on its way out gets this long. Nobody waits if nothing is left.
PATIENCE = 20.0

_SHM = pathlib.Path("/dev/shm")
_NETNS = pathlib.Path("/run/netns")
_SYSV = pathlib.Path("/proc/sysvipc/shm")
_LAB = re.compile(r"(q7x2-(\d+)-\d+-\d+)-\w+")  # the names of tests.lab


@dataclasses.dataclass(frozen=True)
class Moment:
    """What there is at one moment."""

    processes: frozenset[int]
    files: frozenset[str]  # in /dev/shm
    segments: frozenset[int]  # of System V
    namespaces: frozenset[str]
    sockets: frozenset[str]  # of this process


@dataclasses.dataclass(frozen=True)
class Leftover:
    """One thing that should be gone, and how to remove it."""

    text: str
    remove: Callable[[], object]


class Leftovers:
    """Finds and removes what tests of this worker left."""

    def __init__(self, mark: str, standing: Callable[[], set[int]], is_alone: bool) -> None:
        """
        Args:
            mark: that of this worker, see ``worker_processes``.
            standing: returns the ranks that serve several tests.
            is_alone: whether there is no other worker. Then a file of unknown origin is ours.
        """
        self.processes = WorkerProcesses(mark)
        self._standing = standing
        self._is_alone = is_alone
        self._openers = ShmOpeners(self.processes.owns)

    def now(self) -> Moment:
        files = frozenset(_names(_SHM))
        self._openers.forget_all_but(set(files))
        return Moment(
            processes=frozenset(self.processes.alive()),
            files=files,
            segments=frozenset(segment for segment, _, _ in _segments()),
            namespaces=frozenset(_names(_NETNS)),
            sockets=frozenset(_sockets().values()),
        )

    def since(self, before: Moment, with_sockets: bool = True) -> list[Leftover]:
        """Return what is left since ``before``. Wait for what is just about to go.

        Args:
            before: an earlier moment.
            with_sockets: also sockets on which this process itself listens.
        """
        left = list(self._find(before, with_sockets))
        if left:
            gc.collect()  # what is in a cycle of references has no owner, but still exists
        end = time.monotonic() + PATIENCE
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = list(self._find(before, with_sockets))
        return left

    def running(self, known: set[int]) -> list[str]:
        """One line for each process that some test has started and that still runs."""
        pids = self.processes.alive() - self.processes.standing() - self._standing() - known
        return [worker_processes.describe(pid) for pid in sorted(pids)]

    def _find(self, before: Moment, with_sockets: bool) -> Iterator[Leftover]:
        pids = self.processes.alive() - before.processes
        if pids:
            standing = self.processes.standing() | self._standing()
            # What a program of a fixture starts is that fixture's; it counts when the module ends.
            older = before.processes - standing
            pids = {pid for pid in pids - standing if not self.processes.descends(pid, older)}
        for pid in sorted(pids):
            yield Leftover(worker_processes.describe(pid), _killer(pid))
        for name in sorted(_names(_SHM) - before.files):
            if self._is_our_file(name):
                yield Leftover(f"file {_SHM / name}", _remover(_SHM / name))
        for segment, creator, attached in _segments():
            if segment not in before.segments and attached == 0 and self._is_ours(creator):
                text = f"segment {segment} of System V, made by process {creator}"
                yield Leftover(text, _segment_remover(segment))
        for name in sorted(_names(_NETNS) - before.namespaces):
            if (lab := _LAB.fullmatch(name)) and self._is_ours(int(lab[2]), is_guess=False):
                yield Leftover(f"network namespace {name}", _lab_remover(lab[1]))
        if with_sockets:
            for fd, link in _sockets().items():
                if link not in before.sockets and (port := _listens(fd)):
                    yield Leftover(f"this process listens on {port}", _closer(fd))

    def _is_ours(self, pid: int, is_guess: bool = True) -> bool:
        """``is_guess``: whether a process that nobody knows counts if there is no other worker."""
        owns = self.processes.owns(pid)
        return (is_guess and self._is_alone) if owns is None else owns

    def _is_our_file(self, name: str) -> bool:
        path = _SHM / name
        try:
            if path.stat().st_uid != os.getuid():
                return False
        except OSError:
            return False
        is_ours = self._openers.is_ours(name)
        if is_ours is None:
            numbers = map(int, re.findall(r"\d+", name))
            is_ours = self._is_alone or any(n in self.processes.ever for n in numbers)
        return is_ours and not self._is_in_use(str(path))

    def _is_in_use(self, path: str) -> bool:
        """By a process that may live on, such as a rank that serves the next test, too."""
        for pid in self.processes.alive():
            with contextlib.suppress(OSError):
                if path in pathlib.Path(f"/proc/{pid}/maps").read_text():
                    return True
        return False


def _names(directory: pathlib.Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def _segments() -> list[tuple[int, int, int]]:
    """Number, creator and number of users of each segment of System V."""
    try:
        rows = _SYSV.read_text().splitlines()[1:]
    except OSError:
        return []
    return [(int(r[1]), int(r[4]), int(r[6])) for r in map(str.split, rows)]


def _sockets() -> dict[int, str]:
    """The sockets of this process, with names that no two sockets share."""
    links = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            link = str(pathlib.Path(f"/proc/self/fd/{fd}").readlink())
            if link.startswith("socket:"):
                links[fd] = link
    return links


def _listens(fd: int) -> str:
    """Where a socket listens; empty if it does not."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            name = copy.getsockname()
            return f"port {name[1]}" if isinstance(name, tuple) else f"socket {name}"
    return ""


def _killer(pid: int) -> Callable[[], object]:
    return lambda: worker_processes.kill({pid})


def _remover(path: pathlib.Path) -> Callable[[], object]:
    def remove() -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _segment_remover(number: int) -> Callable[[], object]:
    return lambda: ctypes.CDLL(None).shmctl(number, 0, None)  # 0: IPC_RMID


def _lab_remover(name: str) -> Callable[[], object]:
    def remove() -> None:
        from tests.lab.hosts import remove as remove_lab

        remove_lab(name)

    return remove


def _closer(fd: int) -> Callable[[], object]:
    # Its owner still has the number and may close it, so the number stays taken.
    def close() -> None:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, fd, inheritable=False)
        os.close(null)

    return close
