"""Scripts as ranks: programs under torchrun's environment variables, copies of an interpreter.

For what only a whole interpreter shows: exit without clean-up, exit codes, signals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import interpreters

from tests.lab.processes import free_port

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent.parent  # of the checkout


def tail(text: str, lines: int = 120) -> str:
    kept = text.rstrip().splitlines()
    if len(kept) > lines:
        kept = [f"({len(kept) - lines} lines left out)", *kept[-lines:]]
    return "\n".join(kept)


@dataclasses.dataclass
class ScriptResult:
    """One rank's run of a script."""

    rank: int
    returncode: int | None
    stdout: str
    stderr: str

    def describe(self) -> str:
        state = "killed on the deadline" if self.returncode is None else f"exit {self.returncode}"
        return f"---- rank {self.rank}: {state}\n{tail(self.stdout)}\n{tail(self.stderr)}"


class ScriptProcess:
    """A forked copy of the zygote that runs a script: the parts of ``Popen`` that tests need."""

    # Those of the present test; whoever explains a failure empties it before each test.
    used: ClassVar[list[ScriptProcess]] = []

    def __init__(self, path: pathlib.Path, rank: int, env: dict[str, str], args: Sequence[str]):
        self.rank = rank
        self.returncode: int | None = None
        self._out = path.parent / f"out{rank}"
        self._err = path.parent / f"err{rank}"
        folders = [str(TESTS), *env.get("PYTHONPATH", "").split(os.pathsep)]
        env = env | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        with open(os.devnull) as nothing, self._out.open("wb") as out, self._err.open("wb") as err:
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            self._copy = interpreters.Copy(
                [str(path), *args], env, str(pathlib.Path.cwd()), streams
            )
        self.pid = self._copy.pid
        ScriptProcess.used.append(self)

    def poll(self) -> int | None:
        """The exit code, or None; until this is called, a process that ended is a zombie."""
        if self.returncode is None:
            self.returncode = self._copy.poll()
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
            self.dump_and_kill()
        return ScriptResult(self.rank, code, self.stdout(), self.stderr())

    def dump_and_kill(self) -> None:
        """The process writes its stacks to stderr, because PYTHONFAULTHANDLER is set."""
        self.signal(signal.SIGABRT)
        if self.wait(2) is None:
            self.signal(signal.SIGKILL)
            self.wait(5)


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
    except BaseException:
        for process in processes:
            if process.poll() is None:
                process.dump_and_kill()
        raise
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
