"""``Q7X2_LEDGER``: writes what the operations of this process did to a file, as they end.

A daemon thread takes from the flight recorder what is over, once per second and when a group fails,
and writes it. Nothing here runs in an operation's way. What a program records last is written when
it ends. A forked child writes nothing of its parent's, and begins its own file if it makes groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import platform
import sqlite3
import threading
import time
import warnings
from typing import Any

from q7x2._core import observers
from q7x2._core.private_files import make_folder
from q7x2.ledger import rates as ledger_rates
from q7x2.ledger.file import LedgerFile
from q7x2.ledger.samples import Sampler

PERIOD = 1.0
"""Seconds between two writes of a ledger."""
# How much too early waits may end.
_TICK = 1e-3
# How long the end of the process waits for a file system that does not answer.
_PATIENCE = 2.0
_CLOCK_TIMEOUT = 10.0
# Steps and residuals that are kept while the file cannot be written.
_MOST_KEPT = 100_000
_DEFAULT_SIZE = "256M"

_current: Ledger | None = None


class Ledger:
    """The file of this process, and the thread that writes it."""

    def __init__(self, directory: pathlib.Path, limit: int, module: Any) -> None:
        self._directory = directory
        self._limit = limit
        self._module = module
        self._feed = module.LedgerFeed()
        self._sampler = Sampler()
        self._accelerator = ""
        self._rate_changes: list[tuple[int, str]] = []  # that are written
        self._steps: list[tuple[int, float | None]] = []  # that are not written yet
        self._residuals: list[tuple[Any, ...]] = []  # that are not written yet
        self._lock = threading.Lock()  # guards the file
        self._file: LedgerFile | None = None
        self._thread: threading.Thread | None = None
        self._unwritten: list[dict[str, Any]] = []  # batches that could not be written yet
        self._is_failing = False
        self._is_paused = False
        self._is_ending = False

    def announce(self, given: Any) -> None:
        """Tell the other ranks, before the group is made, that this rank has a ledger."""
        given.store.set(_key(given.group_rank), "1")

    def opened(self, backend: Any, given: Any) -> None:
        """Follow the group that ``backend`` is; compare the clocks of its hosts."""
        self._feed.attach()
        described = self._module.describe_group(backend)
        ranks = list(given.global_ranks_in_group) or list(range(described["world_size"]))
        try:
            with self._lock:
                if self._thread is None:
                    self._open(ranks[described["rank"]], described)
            offset = self._clock_offset(backend, given.store, described)
            with self._lock:
                if self._file is not None:
                    leader = ranks[_host_of(described)[0]]
                    self._file.add_clock(described["name"], ranks, leader, offset)
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)

    def _open(self, rank: int, described: dict[str, Any]) -> None:
        rank = int(os.environ.get("RANK", rank))
        path = _free(self._directory, f"q7x2-rank{rank}-{platform.node()}-{os.getpid()}")
        facts = {
            "rank": rank,
            "world_size": os.environ.get("WORLD_SIZE", described["world_size"]),
            **machine_facts(),
        }
        self._file = LedgerFile(path, self._module.ledger_columns(), facts, self._limit)
        self._add_sample(self._file)
        self._thread = threading.Thread(target=self._run, name="q7x2-ledger", daemon=True)
        self._thread.start()
        # In the children of multiprocessing, which run nothing of `atexit`, too.
        from multiprocessing import util

        util.Finalize(None, self.close, exitpriority=0)

    def _clock_offset(
        self, backend: Any, store: Any, described: dict[str, Any]
    ) -> tuple[int, int] | None:
        """Every host's first rank asks rank 0, if both have a ledger. The others get None."""
        rank, leader = described["rank"], _host_of(described)[0]
        try:
            if rank == 0:
                leaders = [host[0] for host in described["hosts"] if host[0] != 0]
                there = [each for each in leaders if store.check([_key(each)])]
                self._module.clock_offset(backend, there, _CLOCK_TIMEOUT)
                return 0, 0
            if rank == leader and store.check([_key(0)]):
                offset: tuple[int, int] = self._module.clock_offset(backend, [], _CLOCK_TIMEOUT)
                return offset
        except RuntimeError as error:
            warnings.warn(f"q7x2 ledger: the clocks were not compared: {error}", stacklevel=2)
        return None

    def _run(self) -> None:
        while not self._is_ending:
            self._feed.wait(to_next_write(time.time()))
            self._feed.attach()
            with self._lock:
                self._write()

    def _write(self) -> None:
        if self._file is None or self._is_paused:
            return
        # What could not be written is written first. The recorder keeps what comes meanwhile, and
        # counts what it loses.
        if not self._unwritten:
            self._unwritten = [each for each in self._feed.take() if _has_news(each)]
        # Others may append meanwhile.
        steps = self._steps[:]
        residuals = self._residuals[:]
        changes = self._module.rate_changes()
        accelerator = self._accelerator or _accelerator()
        try:
            with self._file.transaction():
                self._file.write(self._unwritten)
                if steps:
                    self._file.add_steps(steps)
                if residuals:
                    self._file.add_residuals(residuals)
                self._add_sample(self._file)
                if changes != self._rate_changes:
                    self._file.set_facts({ledger_rates.FACT: ledger_rates.as_fact(changes)})
                if accelerator != self._accelerator:
                    self._file.set_facts({"accelerator": accelerator})
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            return
        self._unwritten = []
        del self._steps[: len(steps)]
        del self._residuals[: len(residuals)]
        self._rate_changes = changes
        self._accelerator = accelerator
        self._is_failing = False

    def _add_sample(self, file: LedgerFile) -> None:
        with contextlib.suppress(OSError):  # no file can be opened; a lost sample loses nothing
            file.add_sample(self._sampler.take())

    def log_step(self, loss: float | None) -> None:
        """A step ends now. Any thread."""
        if self._file is not None and not self._is_paused:
            self._steps.append((time.monotonic_ns(), loss))
            del self._steps[:-_MOST_KEPT]

    def add_residuals(self, rows: list[tuple[Any, ...]]) -> None:
        """Rows of the table ``residual``. Any thread."""
        if self._file is not None and not self._is_paused:
            self._residuals += rows
            del self._residuals[:-_MOST_KEPT]

    def _note_failure(self, error: Exception) -> None:
        """Warn once, until a write succeeds again."""
        if not self._is_failing:
            self._is_failing = True
            warnings.warn(
                f"q7x2 ledger: the file in {self._directory} could not be written, and is tried "
                f"again every second: {error}",
                stacklevel=2,
            )

    def pause(self) -> None:
        """Write nothing until ``resume``, not even later: to measure what writing costs."""
        with self._lock:
            self._write()
            self._is_paused = True

    def resume(self) -> None:
        """Go on with what happens from now on."""
        with self._lock:
            self._feed.take()
            self._is_paused = False

    def close(self) -> None:
        """Write the rest, and close the file. Gives up if that takes long."""
        self._is_ending = True
        self._feed.wake()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            self._write()
            if self._file is not None:
                self._file.close()
                self._file = None
        finally:
            self._lock.release()

    def before_fork(self) -> bool:
        """Wait until no transaction is open. False: that takes too long."""
        return self._lock.acquire(timeout=_PATIENCE)

    def after_fork(self) -> None:
        self._lock.release()

    def abandon(self) -> None:
        """In a forked child: the file and the feed are the parent's, and must not be closed."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class _Forks:
    """What a fork must not copy half done."""

    def __init__(self) -> None:
        self._held: Ledger | None = None
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def _before(self) -> None:
        self._held = _current if _current is not None and _current.before_fork() else None

    def _in_parent(self) -> None:
        if self._held is not None:
            self._held.after_fork()

    def _in_child(self) -> None:
        global _current
        if _current is not None:
            _current.abandon()
            _current = None


_forks: _Forks | None = None


def log_step(loss: float | None) -> None:
    """For ``q7x2.log_step``."""
    if _current is not None:
        _current.log_step(loss)


def add_residuals(rows: list[tuple[Any, ...]]) -> None:
    """What a hook has measured: rows of the table ``residual``."""
    if _current is not None:
        _current.add_residuals(rows)


def of_process(directory: str) -> Ledger:
    """The ledger of this process, which is made if there is none yet.

    Args:
        directory: The value of ``Q7X2_LEDGER``.

    Raises:
        ValueError: ``Q7X2_LEDGER`` is no directory that can be written to, ``Q7X2_LEDGER_SIZE`` is
            no size, or the flight recorder is off.
    """
    global _current, _forks
    if _current is None:
        from q7x2._core.extension import load

        path = _directory(directory)
        limit = _limit(os.environ.get("Q7X2_LEDGER_SIZE", _DEFAULT_SIZE))
        if os.environ.get("Q7X2_FLIGHT_RECORDER", "") == "0":
            raise ValueError(
                f"Q7X2_LEDGER={directory} needs the flight recorder, which Q7X2_FLIGHT_RECORDER=0 "
                "turns off"
            )
        _forks = _forks or _Forks()
        _current = Ledger(path, limit, load())
    return _current


def machine_facts() -> dict[str, Any]:
    """What tells machines and versions apart."""
    from importlib.metadata import version

    import torch

    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "accelerator": "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "q7x2": version("q7x2"),
        "begun_wall_ns": time.time_ns(),
    }


def _accelerator() -> str:
    """The kind of device whose runtime the program has started; empty if there is none.

    It does not look for devices, because that would start the runtime, and break later forks.
    """
    import torch

    return next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_initialized()), "")


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""


def _host_of(described: dict[str, Any]) -> list[int]:
    """The ranks on this rank's host."""
    hosts: list[list[int]] = described["hosts"]
    return next(host for host in hosts if described["rank"] in host)


def to_next_write(now: float) -> float:
    """Seconds until the clock shows a whole number of periods.

    So all ranks write at the same time, and a job whose ranks wait for each other in each step is
    held up once, not by one rank after the other (Petrini, Kerbyson and Pakin, "The case of the
    missing supercomputer performance", 2003).
    """
    return PERIOD - now % PERIOD + _TICK


def _has_news(batch: dict[str, Any]) -> bool:
    return bool(batch["operations"]["count"] or batch["groups"])


def _key(rank: int) -> str:
    return f"q7x2/ledger/{rank}"


def _directory(text: str) -> pathlib.Path:
    directory = pathlib.Path(text).absolute()
    try:
        make_folder(directory)
    except OSError as error:
        raise ValueError(f"Q7X2_LEDGER={text}: expected a directory: {error}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ValueError(f"Q7X2_LEDGER={text}: expected a directory that can be written to")
    return directory


def _free(directory: pathlib.Path, stem: str) -> pathlib.Path:
    """A path that does not exist; an earlier process may have had this one's number."""
    path = directory / f"{stem}.sqlite"
    number = 2
    while os.path.lexists(path):
        path = directory / f"{stem}-{number}.sqlite"
        number += 1
    return path


def _limit(text: str) -> int:
    from q7x2._core.units import parse_size

    try:
        limit = parse_size(text)
    except ValueError as error:
        raise ValueError(f"Q7X2_LEDGER_SIZE={text}: {error}") from error
    if limit < 1 << 20:
        raise ValueError(f"Q7X2_LEDGER_SIZE={text}: expected at least 1M")
    return limit


observers.step_ended.append(log_step)
observers.residuals_measured.append(add_residuals)
