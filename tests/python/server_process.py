"""Servers of a job, as processes of their own, and the store through which they find it."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import harness
import torch
import torch.distributed as dist
from values import HALF, assert_bits, reals

from tests.lab.processes import free_port

HOST = "127.0.0.1"
NONE = harness.GroupSpec("q7x2", key="servers", init="none")
# Nothing is measured: what is forced does not depend on it.
ENV = {"Q7X2_PROBE": "0"}


def _run(arguments: Sequence[str], log: str, env: Mapping[str, str], python: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(env)
    sys.executable = python
    from q7x2.cli import main

    sys.exit(main(["serve", *arguments]))


class ServerProcess:
    """``q7x2 serve``, forked from a process that has imported torch."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: pathlib.Path,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """``python``: what it starts for each of several jobs."""
        self._log = log
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(harness.PRELOAD)
        self._process = context.Process(
            target=_run,
            args=(tuple(arguments), str(log), dict(env or {}), python),
            daemon=True,
        )
        self._process.start()

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def await_words(self, words: str) -> None:
        harness.wait_until(lambda: words in self.said() or not self._process.is_alive())
        assert words in self.said(), self.said()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def exit_code(self) -> int | None:
        """Waits for its end."""
        self._process.join(30)
        assert not self._process.is_alive(), f"the server goes on:\n{self.said()}"
        return self._process.exitcode

    def end(self) -> None:
        self._process.kill()
        self._process.join()


class Job:
    """A job's store, in this process, and its servers."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._store: dist.TCPStore | None = dist.TCPStore(
            HOST, self.port, is_master=True, wait_for_workers=False
        )
        self.servers: list[ServerProcess] = []

    def server(
        self, env: Mapping[str, str] | None = None, *options: str, ready: bool = True
    ) -> ServerProcess:
        """Starts one more server; groups that are made from now on have it, if it is ready."""
        name = f"s{len(self.servers)}"
        where = ("--master-addr", HOST, "--master-port", str(self.port))
        arguments = (*where, "--name", name, *options)
        server = ServerProcess(arguments, self._directory / f"{name}.log", env)
        self.servers.append(server)
        if ready:
            server.await_words("is server")
        return server

    def close_store(self) -> None:
        self._store = None

    def close(self) -> None:
        for server in self.servers:
            server.end()
        self.close_store()


@contextmanager
def job(directory: pathlib.Path) -> Iterator[Job]:
    """A job of no ranks yet."""
    made = Job(directory)
    try:
        yield made
    finally:
        made.close()


def join(port: int, world_size: int, timeout: float = 30.0) -> None:
    """Called by a rank: makes the default group of the job."""
    dist.init_process_group(
        "q7x2",
        store=dist.TCPStore(HOST, port, is_master=False),
        rank=harness.current_rank(),
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )


def run(pool: harness.RankPool, body: Callable[..., Any], **arguments: Any) -> list[Any]:
    return pool.run(body, NONE, **arguments)


def served_calls(group: Any = None) -> int:
    """By the servers of a group, as this rank counts them."""
    import q7x2

    servers = q7x2.describe(group).servers
    return servers[0]["calls"] if servers else 0


def await_file(path: str) -> None:
    harness.wait_until(pathlib.Path(path).exists)


def sum_in_rank_order(size: int, dtype: torch.dtype, salt: int, world_size: int) -> torch.Tensor:
    wide = torch.float32 if dtype in HALF else dtype
    total = reals(0, size, dtype, salt).to(wide)
    for rank in range(1, world_size):
        total = total + reals(rank, size, dtype, salt).to(wide)
    return total.to(dtype)


def check_call(world_size: int, salt: int, size: int = 50_000, group: Any = None) -> None:
    tensor = reals(dist.get_rank(), size, torch.float32, salt)
    dist.all_reduce(tensor, group=group)
    assert_bits(tensor, sum_in_rank_order(size, torch.float32, salt, world_size), salt)
