"""Gives a process a part of a processor: a cgroup with a CPU quota, version 1 or 2 (root)."""

from __future__ import annotations

import os
from pathlib import Path

_PERIOD_US = 100_000
_ROOT = Path("/sys/fs/cgroup")


class ProcessorQuota:
    """A context manager: processes that are added to it get `share` of one processor together.

    The group lies in that of this process, so what limits this process limits its members too.

    Raises:
        OSError: There is no cgroup controller for processors that may be written to.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        parent, self._is_v1 = _parent()
        self._parent = parent
        self._path = parent / f"q7x2-quota-{os.getpid()}"

    def __enter__(self) -> ProcessorQuota:
        if not self._is_v1:
            (self._parent / "cgroup.subtree_control").write_text("+cpu")
        self._path.mkdir()
        try:
            if self._is_v1:
                (self._path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            self.set(self._share)
        except OSError:
            self._path.rmdir()
            raise
        return self

    def set(self, share: float) -> None:
        """Give the members another part of a processor from now on."""
        quota = int(share * _PERIOD_US)
        if self._is_v1:
            (self._path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self._path / "cpu.max").write_text(f"{quota} {_PERIOD_US}")

    @property
    def members(self) -> Path:
        """The file to which a process writes its number to become a member."""
        return self._path / "cgroup.procs"

    def __exit__(self, *_: object) -> None:
        self._path.rmdir()  # its processes have ended


def _parent() -> tuple[Path, bool]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _ROOT / "cpu" / path.lstrip("/"), True
        if not controllers and (_ROOT / "cgroup.controllers").exists():
            return _ROOT / path.lstrip("/"), False
    raise OSError("no cgroup controller for processors was found")
