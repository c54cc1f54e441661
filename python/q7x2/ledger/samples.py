"""Samples of a process and its machine, which the ledger takes once per second.

A sample holds running totals, so two samples give a rate, and a lost one loses nothing. What the
machine does not tell is None: RAPL is often absent in virtual machines, and readable by root only.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time

from q7x2.ledger.connections import busy_us

_RAPL = pathlib.Path("/sys/class/powercap")
_PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True)
class Sample:
    """Totals of one moment.

    Attributes:
        steady_ns: The moment, on the host's steady clock.
        cpu_ns: Processor time of all threads.
        main_cpu_ns: Processor time of the main thread.
        main_delay_ns: For how long the main thread was ready to run and had no processor. A CPU
            quota that is used up counts. None if the kernel has no scheduler statistics.
        memory_bytes: Resident memory now.
        energy_uj: Energy of all processor packages of the host in microjoules, from RAPL.
        network: Bytes received and sent by interface of the host, without loopback.
        connections: Microseconds that open TCP connections were busy; see ``connections``.
    """

    steady_ns: int
    cpu_ns: int
    main_cpu_ns: int | None
    main_delay_ns: int | None
    memory_bytes: int
    energy_uj: int | None
    network: dict[str, tuple[int, int]]
    connections: dict[str, int] = dataclasses.field(default_factory=dict)


class Sampler:
    """Takes samples of this process."""

    def __init__(self, proc: pathlib.Path = _PROC, rapl: pathlib.Path = _RAPL) -> None:
        self._schedstat = str(proc / "self" / "task" / str(os.getpid()) / "schedstat")
        self._statm = str(proc / "self" / "statm")
        self._devices = str(proc / "self" / "net" / "dev")
        self._packages = [_Package(path) for path in _package_paths(rapl)]

    def take(self) -> Sample:
        """A sample of now."""
        scheduled = self._scheduled()
        return Sample(
            steady_ns=time.monotonic_ns(),
            cpu_ns=time.process_time_ns(),
            main_cpu_ns=scheduled[0],
            main_delay_ns=scheduled[1],
            memory_bytes=self._memory(),
            energy_uj=self._energy(),
            network=self._network(),
            connections=busy_us(),
        )

    def _scheduled(self) -> tuple[int | None, int | None]:
        try:
            on_processor, waiting, _ = _read(self._schedstat).split()
        except (OSError, ValueError):
            return None, None
        return int(on_processor), int(waiting)

    def _memory(self) -> int:
        pages = _read(self._statm).split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _energy(self) -> int | None:
        read = [package.read() for package in self._packages]
        known = [energy for energy in read if energy is not None]
        return sum(known) if known and len(known) == len(read) else None

    def _network(self) -> dict[str, tuple[int, int]]:
        found = {}
        for line in _read(self._devices).splitlines()[2:]:
            name, _, text = line.partition(b":")
            values = text.split()
            if name.strip() != b"lo":
                found[name.strip().decode()] = int(values[0]), int(values[8])
        return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _package_paths(rapl: pathlib.Path) -> list[pathlib.Path]:
    """Processor packages. Cores and memory controllers below them would count twice."""
    found = []
    for path in sorted(rapl.glob("*-rapl:*")):
        try:
            is_package = (path / "name").read_text().startswith("package")
        except OSError:
            continue
        if is_package:
            found.append(path)
    return found


class _Package:
    """The energy counter of one package, which begins at 0 again after a while."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path / "energy_uj"
        self._range = path / "max_energy_range_uj"
        self._last: int | None = None
        self._total = 0

    def read(self) -> int | None:
        """Microjoules since the first call; None if they cannot be read."""
        try:
            now = int(self._path.read_text())
            if self._last is not None:
                gone = now - self._last
                self._total += gone if gone >= 0 else gone + int(self._range.read_text())
        except (OSError, ValueError):
            return None
        self._last = now
        return self._total
