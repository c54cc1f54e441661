"""Runs test bodies on real rank processes and says what became of every one of them.

A ``RankPool`` holds ``world_size`` processes, forked from a server that has already imported torch
(20 ms per rank instead of two seconds of imports). A test body is named by module and qualified
name and called on every rank with the same keyword arguments; its group comes from a
``GroupSpec``. ``collect`` returns one ``Outcome`` a rank: its value, its traceback, its exit code
if it died, or, past the deadline, the stack of every thread at the point where it hung.

Tests find here what they need of ``rank_scripts`` as well, which runs programs as ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import connection
from typing import Any, ClassVar

import rank_inspection
from rank_outcomes import Outcome, RankFailure
from rank_process import GroupSpec, current_rank, serve
from rank_scripts import ROOT, TESTS, ScriptResult, run_script, script, tail

from tests.lab.processes import free_port

__all__ = [
    "ROOT",
    "TESTS",
    "GroupSpec",
    "Outcome",
    "RankFailure",
    "RankPool",
    "RankPools",
    "ScriptResult",
    "current_rank",
    "run_script",
    "script",
    "wait_until",
]

# Modules that the fork server imports once. None of them starts a thread or opens a device; the
# q7x2 extension and UCX are loaded by each rank itself, as in a user's process.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch.profiler",
    "torch.testing",
    "torch.utils.data",
    "torch._dynamo",
    "numpy",
    "pytest",
    "frozen",  # the last one
]

# How long the other ranks may go on after one has failed or died, before they count as hung.
GRACE = 5.0


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when ``condition`` holds; raises AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"nothing happened within {seconds} s"
        time.sleep(0.01)


def name_of(body: Callable[..., Any]) -> tuple[str, str]:
    """Module and qualified name of a module-level function."""
    if "<locals>" in body.__qualname__:
        raise TypeError(f"{body.__qualname__} is nested: a rank cannot import it")
    return body.__module__, body.__qualname__


class RankPool:
    """``world_size`` rank processes that run bodies until one fails or ``close`` is called."""

    # Those that the present test has used; whoever explains a failure empties it before each test.
    used: ClassVar[list[RankPool]] = []

    def __init__(self, world_size: int, env: Mapping[str, str] | None = None) -> None:
        self.world_size = world_size
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="q7x2-ranks-"))
        self._serial = 0
        self._deadline = 0.0
        self._log_start = [0] * world_size
        self._pending: set[int] = set()
        self._started = False
        self._closed = False
        self._outcomes: list[Outcome] = []
        self.usable = True
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipes: list[connection.Connection] = []
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self._witnesses: list[connection.Connection] = []
        child_ends = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            asking, answering = context.Pipe()
            process = context.Process(
                target=serve,
                name=f"rank-{rank}",
                args=(rank, world_size, theirs, answering, str(self._log(rank)), dict(env or {})),
            )
            process.start()
            child_ends += [theirs, answering]
            self.pipes.append(ours)
            self._witnesses.append(asking)
            self.processes.append(process)
        for end in child_ends:
            end.close()

    def _log(self, rank: int) -> pathlib.Path:
        return self.directory / f"rank{rank}.log"

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def start(
        self,
        body: Callable[..., Any],
        group: GroupSpec,
        deadline: float = 60.0,
        ranks: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begins ``body(**kwargs)`` on ``ranks`` (all by default)."""
        assert self.usable, "the pool is spent"
        assert not self._started, "the pool still runs a body"
        chosen = list(range(self.world_size)) if ranks is None else list(ranks)
        module, qualname = name_of(body)
        self._serial += 1
        task = {
            "module": module,
            "qualname": qualname,
            "kwargs": kwargs,
            "group": group,
            "init": self._url(group.init),
            "deadline": deadline,
        }
        self._started = True
        if self not in RankPool.used:
            RankPool.used.append(self)
        self._pending = set(chosen)
        self._deadline = time.monotonic() + deadline
        for rank in chosen:
            log = self._log(rank)
            self._log_start[rank] = log.stat().st_size if log.exists() else 0
            # Of a rank that is gone, collect() finds the exit code.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.pipes[rank].send(task)

    def _url(self, init: str) -> str | None:
        """Where the ranks of the next body meet."""
        if init == "tcp":
            return f"tcp://127.0.0.1:{free_port()}"
        return f"file://{self.directory}/store{self._serial}" if init == "file" else None

    def collect(self, grace: float = GRACE, stop_on_failure: bool = True) -> list[Outcome]:
        """Waits for every rank started; hung ranks dump their stacks and are killed.

        With ``stop_on_failure`` the ranks that still run ``grace`` seconds after the first failure
        count as hung; otherwise only the deadline ends the wait.
        """
        done: dict[int, Outcome] = {}
        deadline = self._deadline
        pending = set(self._pending)
        while pending:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            watched: dict[Any, int] = {}
            for rank in pending:
                watched[self.pipes[rank]] = rank
                watched[self.processes[rank].sentinel] = rank
            ready = connection.wait(list(watched), timeout=left)
            for rank in sorted({watched[r] for r in ready}):
                outcome = self._receive(rank)
                done[rank] = outcome
                pending.discard(rank)
                if outcome.kind in ("error", "died") and stop_on_failure:
                    deadline = min(deadline, time.monotonic() + grace)
        if pending:
            done.update(self._dump_and_kill(pending))
        self._started = False
        self._pending = set()
        self._outcomes = [done[rank] for rank in sorted(done)]
        if any(o.is_failure for o in self._outcomes):
            self.usable = False
        return self._outcomes

    def run(
        self, body: Callable[..., Any], group: GroupSpec, deadline: float = 60.0, **kwargs: Any
    ) -> list[Any]:
        """Runs ``body`` on every rank and returns the values, or raises ``RankFailure``."""
        self.start(body, group, deadline, **kwargs)
        outcomes = self.collect()
        if any(o.is_failure for o in outcomes):
            raise RankFailure(self.account())
        kinds = {o.kind for o in outcomes}
        if kinds == {"skip"}:
            import pytest

            pytest.skip(outcomes[0].error)
        if "skip" in kinds:
            raise RankFailure(outcomes)
        return [o.value for o in outcomes]

    def _output(self, rank: int) -> str:
        log = self._log(rank)
        if not log.exists():
            return ""
        with log.open("rb") as f:
            f.seek(self._log_start[rank])
            return f.read().decode(errors="replace")

    def _receive(self, rank: int) -> Outcome:
        try:
            if self.pipes[rank].poll(0):
                message = self.pipes[rank].recv()
                kind = message["kind"]
                log = self._output(rank) if kind == "error" else ""
                return Outcome(rank=rank, log=log, **message)
        except (EOFError, ConnectionResetError):
            pass
        at = time.monotonic()
        self.processes[rank].join(5)
        return Outcome(
            rank=rank,
            kind="died",
            exitcode=self.processes[rank].exitcode,
            at=at,
            log=self._output(rank),
        )

    def _dump_and_kill(self, ranks: set[int]) -> dict[int, Outcome]:
        """What each hung rank does: the stacks of its threads, its flight record. Kills it then."""
        outcomes = self._look(ranks, "hung")
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGKILL)
        return outcomes

    def _look(self, ranks: set[int], kind: str) -> dict[int, Outcome]:
        """Ranks that still run a body."""
        pids = {rank: self.pid(rank) for rank in sorted(ranks)}
        stacks = rank_inspection.stacks(pids, self._output)
        seen = {
            rank: Outcome(
                rank=rank,
                kind=kind,
                trace=tail(stacks[rank]) + "\n" + rank_inspection.native_threads(pid),
                log=self._output(rank).removesuffix(stacks[rank]),
                at=time.monotonic(),
            )
            for rank, pid in pids.items()
        }
        return {o.rank: o for o in self._with_flight_records(seen.values())}

    def _with_flight_records(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        outcomes = list(outcomes)
        asked = [o.rank for o in outcomes if not (o.flight or o.no_flight or o.kind == "died")]
        records = rank_inspection.flight_records(
            {rank: self._witnesses[rank] for rank in asked},
            {rank: self.pid(rank) for rank in asked},
            self.directory,
        )
        return [
            dataclasses.replace(o, flight=records[o.rank][0], no_flight=records[o.rank][1])
            if o.rank in records
            else o
            for o in outcomes
        ]

    def account(self) -> list[Outcome]:
        """What is known of each rank, for the report of a test that failed."""
        if not self._closed:
            outcomes = {o.rank: o for o in self._outcomes}
            if self._started:
                ready = {
                    rank
                    for rank in self._pending
                    if self.pipes[rank].poll(0) or not self.processes[rank].is_alive()
                }
                outcomes = {rank: self._receive(rank) for rank in ready}
                outcomes |= self._look(self._pending - ready, "running")
            self._outcomes = self._with_flight_records(outcomes[r] for r in sorted(outcomes))
        return self._outcomes

    def close(self, grace: float = 15.0) -> list[str]:
        """Ends the ranks; returns what went wrong on the way out (exit codes, hangs)."""
        problems: list[str] = []
        if self._closed:
            return problems
        self._closed = True
        spent = not self.usable
        for rank, pipe in enumerate(self.pipes):
            if spent and self.processes[rank].is_alive():
                with contextlib.suppress(ProcessLookupError):
                    self.signal(rank, signal.SIGKILL)
            else:
                log = self._log(rank)
                self._log_start[rank] = log.stat().st_size if log.exists() else 0
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    pipe.send(None)
        end = time.monotonic() + grace
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        hung = {r for r, p in enumerate(self.processes) if p.is_alive()}
        for rank, outcome in self._dump_and_kill(hung).items() if hung else ():
            problems.append(f"rank {rank} hung at exit\n{outcome.trace}")
        for rank, process in enumerate(self.processes):
            process.join(5)
            if not spent and rank not in hung and process.exitcode != 0:
                output = tail(self._output(rank))
                problems.append(f"rank {rank} exited with {process.exitcode}\n{output}")
        for pipe in (*self.pipes, *self._witnesses):
            pipe.close()
        self.usable = False
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems


class RankPools:
    """Standing pools, by world size and variables; one that a failure spoilt is replaced."""

    _open: ClassVar[list[RankPools]] = []

    def __init__(self) -> None:
        self._pools: dict[tuple[int, frozenset[tuple[str, str]]], RankPool] = {}
        RankPools._open.append(self)

    @classmethod
    def pids(cls) -> set[int]:
        """The ranks of all standing pools."""
        pools = [pool for pools in cls._open for pool in pools._pools.values()]
        return {pool.pid(rank) for pool in pools for rank in range(pool.world_size)}

    def get(self, world_size: int, env: Mapping[str, str] | None = None) -> RankPool:
        key = world_size, frozenset((env or {}).items())
        pool = self._pools.get(key)
        if pool is not None and not pool.usable:
            pool.close()
            pool = None
        if pool is None:
            pool = self._pools[key] = RankPool(world_size, env)
        return pool

    def close(self) -> list[str]:
        problems = []
        for (world_size, env), pool in self._pools.items():
            problems += [f"world size {world_size} {dict(env)}: {p}" for p in pool.close()]
        self._pools.clear()
        RankPools._open.remove(self)
        return problems
