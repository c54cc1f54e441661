"""One rank: a process that does what the controller says, and reports what became of each call."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import q7x2
import torch
import torch.distributed as dist

from tests.faults import resources
from tests.faults.calls import Caller, WrongResult, check, summed, values
from tests.faults.resources import Resources
from tests.faults.workload import Raised, Report, Workload

# A rank that no event reaches gives up by itself.
_LONGEST_S = 90.0
# How long a rank's child or next program lives: longer than survivors may take to notice.
_CHILD_S = 8


class Leaves(Exception):
    """The end of this process by an exception, as of a user's script."""


def serve(control: Connection, store: tuple[str, int]) -> None:
    """Answers commands until the controller is gone."""
    host, port = store
    # As under torchrun: the store is not rank 0's.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    client = dist.TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    rank = Rank(control, client)
    while True:
        try:
            name, arguments = control.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            result = ("done", getattr(rank, name)(**arguments))
        except Leaves:
            raise
        except Exception:
            result = ("failed", traceback.format_exc())
        control.send(result)


class Rank:
    """The commands. Each public method is one; its arguments and its result are pickled."""

    def __init__(self, control: Connection, store: dist.Store) -> None:
        self._control = control
        self._store = store
        self._rank = -1
        self._world = 0

    def join(
        self,
        rank: int,
        world: int,
        epoch: str,
        timeout: float,
        algorithm: str = "",
        patience: float | None = None,
    ) -> float:
        """Makes the default group and returns how many seconds that took.

        With `patience` the timeout holds for later calls only, and making the group may take that
        long.
        """
        begin = time.monotonic()
        self._rank, self._world = rank, world
        dist.init_process_group(
            "q7x2",
            store=dist.PrefixStore(epoch, self._store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout if patience is None else patience),
            pg_options=q7x2.Options(algorithms=algorithm, refine=False),
        )
        if patience is not None:
            dist.group.WORLD.set_timeout(timedelta(seconds=timeout))
        return time.monotonic() - begin

    def prepare(self, rank: int, world: int, epoch: str) -> None:
        """What a workload that makes the default group itself must know.

        A process that ends while it loads UCX has not arrived yet, so UCX is loaded here.
        """
        self._rank, self._world, self._epoch = rank, world, epoch
        q7x2.ProcessGroup(dist.HashStore(), 0, 1, timedelta(seconds=30)).shutdown()

    def leave(self) -> float:
        """Destroys all groups and returns how many seconds that took."""
        begin = time.monotonic()
        if dist.is_initialized():
            dist.destroy_process_group()
        else:
            # torch has counted the group that could not be made, and would call the next one
            # differently than ranks that have not tried.
            dist.distributed_c10d._world.group_count = 0
        return time.monotonic() - begin

    def resources(self) -> Resources:
        return resources.held()

    def algorithms(self) -> list[str]:
        """Those of the calls so far."""
        return sorted({choice["algorithm"] for choice in q7x2.plan.plan_history()})

    def new_group_raises(self) -> Report:
        """Makes a group of all ranks, which is expected to fail."""
        report = Report(self._rank)
        called = time.monotonic()
        try:
            dist.new_group(timeout=timedelta(seconds=10))
        except Exception as error:
            report.error = _raised("new_group", called, error)
        return report

    def new_group_works(self, ranks: list[int], epoch: str) -> None:
        """Makes a group of `ranks`, this one among them, and uses it.

        One of torch's would have another name on a rank that could not make the one before.
        """
        group = q7x2.ProcessGroup(
            dist.PrefixStore(epoch, self._store),
            ranks.index(self._rank),
            len(ranks),
            timedelta(seconds=20),
        )
        tensor = values(group.rank(), 0, 1 << 12)
        group.allreduce([tensor]).wait()
        check("all_reduce", tensor, summed(len(ranks), 0, tensor.numel()))
        group.shutdown()

    def run(self, workload: Workload) -> Report:
        """Makes the calls of a workload."""
        report = Report(self._rank)
        operation, called = "init", time.monotonic()

        def begins(name: str) -> None:
            nonlocal operation, called
            operation, called = name, time.monotonic()

        role = workload.roles.get(self._rank, "")
        self._control.send(("started", time.monotonic()))
        try:
            if workload.stage == "init":
                if role == "absent":
                    return report
                self.join(
                    self._rank, self._world, self._epoch, workload.timeout, workload.algorithm
                )
            self._rounds(workload, role, report, begins)
        except WrongResult as error:
            report.wrong = str(error)
        except Leaves:
            raise
        except Exception as error:
            report.error = _raised(operation, called, error)
            del error  # it refers to this frame, and that to tensors
            if workload.stage != "new_group":  # there the default group may live on
                report.next_error = self._next_call()
            if "leaves" in workload.roles.values() and dist.is_initialized():
                # It cannot go on, and others may wait for its messages.
                dist.destroy_process_group()
        return report

    def _rounds(
        self, workload: Workload, role: str, report: Report, begins: Callable[[str], None]
    ) -> None:
        caller = Caller(async_op=workload.async_op)
        begin = time.monotonic()
        if role == "aborts":
            report.acted_at = _abort_twice(begin + workload.role_after + 0.03)
            role = ""
        while workload.rounds is None or report.rounds < workload.rounds:
            if role and time.monotonic() - begin >= workload.role_after:
                if not self._play(role, workload, report, begins):
                    return
                role = ""
            elif time.monotonic() - begin > _LONGEST_S:
                return
            op = workload.ops[report.rounds % len(workload.ops)]
            if workload.stage == "new_group":
                begins("new_group")
                group = dist.new_group(timeout=timedelta(seconds=workload.timeout))
                begins(op)
                Caller(group)(op, report.rounds, workload.count)
                dist.destroy_process_group(group)
            else:
                begins(op)
                caller(op, report.rounds, workload.count)
            report.completed.append(time.monotonic())
            report.rounds += 1
            if workload.pause:
                time.sleep(workload.pause)

    def _play(
        self, role: str, workload: Workload, report: Report, begins: Callable[[str], None]
    ) -> bool:
        """Plays the role of this rank; True if it goes on with its rounds."""
        report.acted_at = time.monotonic()
        if role == "odd":
            op = workload.ops[report.rounds % len(workload.ops)]
            begins(op)
            Caller()(op, report.rounds, workload.count + 8 * self._world)
            return True
        if role == "leaves":
            dist.destroy_process_group()
        elif role in ("exits", "execs", "orphans"):
            if role == "orphans":
                _fork_child()
                report.acted_at = time.monotonic()
            self._control.send(("event", report.acted_at))
            self._end(role)
        return False

    def _end(self, role: str) -> NoReturn:
        if role == "exits":
            raise Leaves(f"rank {self._rank} ends, on purpose")
        if role == "execs":
            os.execv("/bin/sleep", ["sleep", str(_CHILD_S)])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def _next_call(self) -> Raised | None:
        if not dist.is_initialized():
            return None
        called = time.monotonic()
        try:
            dist.all_reduce(torch.ones(4))
        except Exception as error:
            return _raised("all_reduce", called, error)
        return None


def _fork_child() -> None:
    """A child that shares all files with this process, and outlives it by some seconds."""
    if os.fork() == 0:
        time.sleep(_CHILD_S)
        os._exit(0)


def _abort_twice(moment: float) -> float:
    """Two other threads abort the default group at that moment."""
    backend: Any = dist.group.WORLD
    backend = backend._get_backend(torch.device("cpu"))

    def abort() -> None:
        time.sleep(max(0.0, moment - time.monotonic()))
        with contextlib.suppress(
            RuntimeError
        ):  # an error here shows as a rank that is not released
            backend.abort()

    for _ in range(2):
        threading.Thread(target=abort, daemon=True).start()
    return moment


def _raised(operation: str, called: float, error: Exception) -> Raised:
    now = time.monotonic()
    is_typed = isinstance(error, dist.DistBackendError)
    return Raised(operation, called, now, type(error).__name__, is_typed, str(error))
