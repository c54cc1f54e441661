"""Who opened which file in /dev/shm: what a name does not say, and nobody can tell afterwards.

The kernel's fanotify reports each opening with the process. It needs root. Without it ``is_ours``
does not know an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import struct
import threading
from collections.abc import Callable

DIRECTORY = "/dev/shm"

_CLOEXEC, _NONBLOCK = 0x1, 0x2
_MARK_ADD, _OPEN, _ON_CHILD = 0x1, 0x20, 0x08000000
_AT_FDCWD = -100
_EVENT = struct.Struct("IBBHQii")  # length, version, reserved, metadata length, mask, fd, pid
_NO_FD = -1


class ShmOpeners:
    """A thread that notes who opens files in /dev/shm while those processes still live."""

    def __init__(self, owns: Callable[[int], bool | None]) -> None:
        """``owns`` says whether a process is this worker's; None if that is not known."""
        self._owns = owns
        self._ours: dict[str, bool] = {}  # by file: whether the first process to open it is ours
        self._lock = threading.Lock()
        self._fd = _watch()
        if self._fd is not None:
            threading.Thread(target=self._read, name="shm openers", daemon=True).start()

    def is_ours(self, name: str) -> bool | None:
        """Whether a process of this worker made the file; None if that is not known."""
        self._drain()
        return self._ours.get(name)

    def forget_all_but(self, names: set[str]) -> None:
        """The names of files that are gone may be used again."""
        with self._lock:
            for name in set(self._ours) - names:
                del self._ours[name]

    def _read(self) -> None:
        assert self._fd is not None
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            poll.poll()
            self._drain()

    def _drain(self) -> None:
        """Note what the kernel has reported so far."""
        if self._fd is None:
            return
        with self._lock, contextlib.suppress(BlockingIOError):
            while events := os.read(self._fd, 1 << 16):
                while events:
                    length, _, _, _, _, fd, pid = _EVENT.unpack_from(events)
                    events = events[length:]
                    if fd != _NO_FD:
                        self._note(fd, pid)

    def _note(self, fd: int, pid: int) -> None:
        with contextlib.suppress(OSError):
            path = str(pathlib.Path(f"/proc/self/fd/{fd}").readlink())
            name = path.rpartition("/")[2]
            if name not in self._ours and (is_ours := self._owns(pid)) is not None:
                self._ours[name] = is_ours
        os.close(fd)


def _watch() -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fanotify_init"):
        return None
    fd = libc.fanotify_init(_CLOEXEC | _NONBLOCK, os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        return None
    mask = ctypes.c_uint64(_OPEN | _ON_CHILD)
    if libc.fanotify_mark(fd, _MARK_ADD, mask, _AT_FDCWD, DIRECTORY.encode()) < 0:
        os.close(fd)
        return None
    return int(fd)
