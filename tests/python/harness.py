"""Runs test bodies on real rank processes and says what became of every one of them.

A ``RankPool`` holds ``world_size`` processes, forked from a server that has already imported torch
(some 20 ms a rank instead of two seconds of imports). A test body is named by module and qualified
name and called on every rank with the same keyword arguments; its group comes from a
``GroupSpec``. ``collect`` returns one ``Outcome`` a rank: its value, its traceback, its exit code
if it died, or, past the deadline, the stack of every thread at the point where it hung.

``run_script`` runs a program on every rank under torchrun's environment variables, for what only a
whole interpreter shows: exit without clean-up, exit codes, signals.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import faulthandler
import importlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from benchmarks.processes import free_port

TESTS = pathlib.Path(__file__).resolve().parent

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
]

# How long the other ranks may go on after one has failed or died, before they count as hung.
GRACE = 5.0


@dataclasses.dataclass(frozen=True)
class GroupSpec:
    """The default process group a body finds; ``key`` decides when a pool makes a new one."""

    backend: str
    key: str = ""
    timeout: float = 30.0
    init: str = "file"  # "file", "tcp", or "none": the body makes its own group
    device_id: str | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one rank did. ``at`` is ``time.monotonic()`` on the rank, comparable on one machine."""

    rank: int
    kind: str  # "ok", "skip", "error", "died", "hung"
    value: Any = None
    error: str = ""
    error_type: str = ""
    trace: str = ""
    exitcode: int | None = None
    at: float = 0.0
    log: str = ""

    def describe(self, told: Mapping[str, int] | None = None) -> str:
        """For a person; ``told`` maps traces shown before to the rank they were shown for."""
        head = f"---- rank {self.rank}: {self.kind}"
        if self.exitcode is not None:
            head += f", exit code {self.exitcode}"
            if self.exitcode < 0:
                head += f" ({signal.Signals(-self.exitcode).name})"
        parts = [head]
        if self.kind == "skip":
            parts.append(self.error)
        if self.trace and told is not None and self.trace in told:
            parts.append(f"the same traceback as rank {told[self.trace]}")
            return "\n".join(parts)
        if self.trace:
            parts.append(self.trace.rstrip())
        if self.log.strip():
            parts.append("output:\n" + textwrap.indent(_tail(self.log), "  "))
        return "\n".join(parts)


class RankFailure(AssertionError):
    """At least one rank did not return; the text has a part for every rank."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        bad = [o.rank for o in outcomes if o.kind not in ("ok", "skip")]
        told: dict[str, int] = {}
        parts = []
        for outcome in outcomes:
            parts.append(outcome.describe(told))
            if outcome.trace:
                told.setdefault(outcome.trace, outcome.rank)
        text = "\n".join(parts)
        super().__init__(f"ranks {bad} of {len(self.outcomes)} failed\n{text}")


def _tail(text: str, lines: int = 120) -> str:
    kept = text.rstrip().splitlines()
    if len(kept) > lines:
        kept = [f"({len(kept) - lines} lines left out)", *kept[-lines:]]
    return "\n".join(kept)


_rank: int | None = None


def current_rank() -> int:
    """This process's rank, also while there is no process group."""
    assert _rank is not None, "not a rank process"
    return _rank


def name_of(body: Callable[..., Any]) -> tuple[str, str]:
    """Module and qualified name of a module-level function."""
    if "<locals>" in body.__qualname__:
        raise TypeError(f"{body.__qualname__} is nested: a rank cannot import it")
    return body.__module__, body.__qualname__


class RankPool:
    """``world_size`` rank processes that run bodies until one fails or ``close`` is called."""

    def __init__(self, world_size: int, env: Mapping[str, str] | None = None) -> None:
        self.world_size = world_size
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="q7x2-ranks-"))
        self._serial = 0
        self._deadline = 0.0
        self._log_start = [0] * world_size
        self._pending: set[int] = set()
        self._started = False
        self._closed = False
        self.usable = True
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipes: list[connection.Connection] = []
        self.processes: list[multiprocessing.process.BaseProcess] = []
        child_ends = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                name=f"rank-{rank}",
                args=(rank, world_size, theirs, str(self._log(rank)), dict(env or {})),
            )
            process.start()
            child_ends.append(theirs)
            self.pipes.append(ours)
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
            "init": {
                "file": f"file://{self.directory}/store{self._serial}",
                "tcp": f"tcp://127.0.0.1:{free_port()}",
                "none": None,
            }[group.init],
            "deadline": deadline,
        }
        self._started = True
        self._pending = set(chosen)
        self._deadline = time.monotonic() + deadline
        for rank in chosen:
            log = self._log(rank)
            self._log_start[rank] = log.stat().st_size if log.exists() else 0
            # Of a rank that is gone, collect() finds the exit code.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.pipes[rank].send(task)

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
        outcomes = [done[rank] for rank in sorted(done)]
        if any(o.kind not in ("ok", "skip") for o in outcomes):
            self.usable = False
        return outcomes

    def run(
        self, body: Callable[..., Any], group: GroupSpec, deadline: float = 60.0, **kwargs: Any
    ) -> list[Any]:
        """Runs ``body`` on every rank and returns the values, or raises ``RankFailure``."""
        self.start(body, group, deadline, **kwargs)
        outcomes = self.collect()
        if any(o.kind not in ("ok", "skip") for o in outcomes):
            raise RankFailure(outcomes)
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
        """Has each hung rank write the stacks of all its threads into its log, then kills it."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGUSR1)
        time.sleep(0.5)
        outcomes = {}
        for rank in ranks:
            trace = self._output(rank)
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGKILL)
            outcomes[rank] = Outcome(
                rank=rank, kind="hung", trace=_tail(trace), at=time.monotonic()
            )
        return outcomes

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
                output = _tail(self._output(rank))
                problems.append(f"rank {rank} exited with {process.exitcode}\n{output}")
        for pipe in self.pipes:
            pipe.close()
        self.usable = False
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems


def _serve(
    rank: int, world_size: int, pipe: connection.Connection, log: str, env: dict[str, str]
) -> None:
    """A rank's main loop: run bodies until the pipe closes or None arrives."""
    global _rank
    _rank = rank
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    os.environ.update(env)

    import torch
    import torch.distributed as dist

    if "TORCH_DISTRIBUTED_DEBUG" in env:
        dist.set_debug_level_from_env()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
    torch.set_num_threads(1)
    current: GroupSpec | None = None
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            task = None
        if task is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            return
        group: GroupSpec = task["group"]
        # The last resort when the parent is gone: dump, then leave.
        faulthandler.dump_traceback_later(task["deadline"] + 30, exit=True, file=sys.stderr)
        message: dict[str, Any] = {"kind": "ok"}
        try:
            if group != current:
                if dist.is_initialized():
                    dist.destroy_process_group()
                current = None
                if task["init"] is not None:
                    _init_group(group, task["init"], rank, world_size)
                    current = group
            torch.manual_seed(0)
            module = importlib.import_module(task["module"])
            body: Any = module
            for part in task["qualname"].split("."):
                body = getattr(body, part)
            message["value"] = body(**task["kwargs"])
        except BaseException as error:  # a rank reports SystemExit and KeyboardInterrupt as well
            message = _failure(error)
        faulthandler.cancel_dump_traceback_later()
        message["at"] = message.get("at", time.monotonic())
        pipe.send(message)


def _init_group(group: GroupSpec, url: str, rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    options: dict[str, Any] = {}
    if group.device_id is not None:
        options["device_id"] = torch.device(group.device_id)
    dist.init_process_group(
        group.backend,
        init_method=url,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=group.timeout),
        **options,
    )


def _failure(error: BaseException) -> dict[str, Any]:
    import pytest

    at = time.monotonic()
    skipped = isinstance(error, pytest.skip.Exception)
    return {
        "kind": "skip" if skipped else "error",
        "error": str(error),
        "error_type": type(error).__name__,
        "trace": "".join(traceback.format_exception(error)),
        "at": at,
    }


class RankPools:
    """One standing pool a world size; a pool that a failure spoilt is replaced on next use."""

    def __init__(self) -> None:
        self._pools: dict[int, RankPool] = {}

    def get(self, world_size: int) -> RankPool:
        pool = self._pools.get(world_size)
        if pool is not None and not pool.usable:
            pool.close()
            pool = None
        if pool is None:
            pool = self._pools[world_size] = RankPool(world_size)
        return pool

    def close(self) -> list[str]:
        problems = []
        for world_size, pool in self._pools.items():
            problems += [f"world size {world_size}: {p}" for p in pool.close()]
        self._pools.clear()
        return problems


@dataclasses.dataclass
class ScriptResult:
    """One rank's run of a script."""

    rank: int
    returncode: int | None
    stdout: str
    stderr: str

    def describe(self) -> str:
        state = "killed on the deadline" if self.returncode is None else f"exit {self.returncode}"
        return f"---- rank {self.rank}: {state}\n{_tail(self.stdout)}\n{_tail(self.stderr)}"


class Zygote:
    """The one process that forks those of scripts (see ``zygote.py``)."""

    _instance: Zygote | None = None

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )

    @classmethod
    def get(cls) -> Zygote:
        if cls._instance is None:
            cls._instance = cls()
            atexit.register(cls._instance._process.kill)
        return cls._instance

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class ScriptProcess:
    """A forked copy of the zygote that runs a script: the parts of ``Popen`` that tests need."""

    def __init__(self, path: pathlib.Path, rank: int, env: dict[str, str], args: Sequence[str]):
        self.rank = rank
        self.returncode: int | None = None
        self._out = path.parent / f"out{rank}"
        self._err = path.parent / f"err{rank}"
        request = {"run": str(path), "args": list(args), "env": env}
        answer = Zygote.get().ask(**request, out=str(self._out), err=str(self._err))
        self.pid: int = answer["pid"]

    def poll(self) -> int | None:
        """The exit code, or None; until this is called, a process that ended is a zombie."""
        if self.returncode is None:
            self.returncode = Zygote.get().ask(wait=self.pid)["status"]
        return self.returncode

    def wait(self, timeout: float) -> int | None:
        """The exit code, or None if the process still runs after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.returncode

    def signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def stdout(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    def stderr(self) -> str:
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def result(self, deadline: float) -> ScriptResult:
        """Waits; a process that still runs then shows where it hung and is killed."""
        code = self.wait(deadline)
        if code is None:
            self.signal(signal.SIGABRT)  # PYTHONFAULTHANDLER has the stacks dumped
            if self.wait(2) is None:
                self.signal(signal.SIGKILL)
                self.wait(5)
        return ScriptResult(self.rank, code, self.stdout(), self.stderr())


@contextlib.contextmanager
def script(
    source: str,
    world_size: int,
    directory: pathlib.Path,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> Iterator[list[ScriptProcess]]:
    """Starts ``source`` as a program on each rank; whatever still runs at the end is killed."""
    path = directory / "script.py"
    path.write_text(textwrap.dedent(source))
    port = free_port()
    processes: list[ScriptProcess] = []
    try:
        for rank in range(world_size):
            full = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **(env or {}),
            }
            processes.append(ScriptProcess(path, rank, full, args))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.signal(signal.SIGKILL)
                process.wait(5)


def run_script(
    source: str,
    world_size: int,
    directory: pathlib.Path,
    deadline: float = 60.0,
    env: Mapping[str, str] | None = None,
    expect: int = 0,
    args: Sequence[str] = (),
) -> list[ScriptResult]:
    """Runs ``source`` on every rank; each must exit with ``expect``."""
    with script(source, world_size, directory, env, args) as processes:
        end = time.monotonic() + deadline
        results = [p.result(max(0.0, end - time.monotonic())) for p in processes]
    bad = [r.rank for r in results if r.returncode != expect]
    if bad:
        raise AssertionError(
            f"ranks {bad} of {world_size} did not exit with {expect}\n"
            + "\n".join(r.describe() for r in results)
        )
    return results
