"""``DistributedTest`` of torch's wheel as a test case for ``BACKEND`` and ``WORLD_SIZE``.

As test_distributed_spawn.py of PyTorch's repository makes it, except that the ranks are forked
from this process, which has imported torch: 20 ms per rank instead of five seconds.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from typing import Any

import upstream_aim

BACKEND = os.environ["BACKEND"]

upstream_aim.patch_torch(BACKEND)
_tests = upstream_aim.load_suite(BACKEND)


class UpstreamTest(_tests.TestDistBackend, _tests.DistributedTest._DistTestBase):  # type: ignore
    """The suite; each instance spawns its ranks in ``setUp`` and joins them as its test."""

    log = ""
    exit_codes_are_free = False

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = multiprocessing.get_context("fork")

        def process(target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            arguments = (self.log, target, args, kwargs)
            return context.Process(target=_rank_main, name=name, args=arguments)

        self._start_processes(process)

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        self.exit_codes = [p.exitcode for p in self.processes]
        self.exit_codes_are_free = (
            fn in self.skip_return_code_checks or fn in self.special_return_code_checks
        )
        super()._check_return_codes(fn, elapsed_time)


def _rank_main(log: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    target(*args, **kwargs)
