"""Runs the GoogleTest binaries in shards, each as soon as it is built."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from .binaries import Binary
from .built import Builder
from .durations import balanced, recorded
from .paths import RESULTS
from .shard import CppResult, run_shard


def suite_of(binary: Binary, test: str) -> str:
    """The name under which a test's seconds are recorded."""
    return f"{binary.name}:{test.rpartition('.')[0]}"


class CppRun:
    """All binaries, or what ``filters`` leaves of them; ``join`` waits for the end."""

    def __init__(
        self,
        binaries: Sequence[Binary],
        builder: Builder,
        filters: Sequence[str] | None,
        nightly: bool,
        processes: int,
    ) -> None:
        self.result = CppResult()
        self.seconds: dict[str, float] = {}  # by suite
        self._binaries = binaries
        self._builder = builder
        self._filters = filters
        self._nightly = nightly
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(processes, thread_name_prefix="shard")
        self._thread = threading.Thread(target=self._run, name="cpp", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self) -> None:
        """Ends what runs, and begins nothing more."""
        self._stopped.set()

    def _run(self) -> None:
        shards: list[Future[None]] = []
        for binary in self._binaries:
            problem = self._builder.wait(binary.target)
            if problem:
                with self._lock:
                    self.result.failed[f"{binary.name}: the build of {binary.target}"] = problem
                continue
            shards += [
                self._pool.submit(self._run_shard, binary, tests, number)
                for number, tests in enumerate(self._shards(binary))
            ]
        for shard in shards:
            shard.result()
        self._pool.shutdown()

    def _shards(self, binary: Binary) -> list[list[str]]:
        tests = binary.tests(self._nightly, self._filters)
        by_suite: dict[str, list[str]] = {}
        for test in tests:
            by_suite.setdefault(suite_of(binary, test), []).append(test)
        parts = balanced(list(by_suite), recorded("cpp"), binary.shards)
        return [[test for suite in part for test in by_suite[suite]] for part in parts]

    def _run_shard(self, binary: Binary, tests: list[str], number: int) -> None:
        result = run_shard(binary, tests, RESULTS, number, self._stopped)
        with self._lock:
            for test, seconds in result.seconds.items():
                suite = suite_of(binary, test)
                self.seconds[suite] = self.seconds.get(suite, 0.0) + seconds
            self.result.add(result.under(binary.name))
