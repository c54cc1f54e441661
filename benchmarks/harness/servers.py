"""Servers of q7x2 beside the ranks of a lab: their hosts, their processes, and stores for them."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from benchmarks.harness import arguments
from benchmarks.harness.arguments import option
from tests.lab import Lab, Topology


def options(*, hosts: int, servers: int, size: str, rounds: int) -> dict[str, Any]:
    """The options of a study with servers, with these defaults; one server is no choice."""
    return {
        "hosts": option(hosts, "with ranks; of each job"),
        "rate": option("100mbit", "of each host's NIC, as tc spells it"),
        **({"servers": servers} if servers > 1 else {}),
        "server_rate": option("1gbit", "of each server's NIC"),
        "size": option(size, f"of the tensor, for example {size}", type=arguments.size),
        "rounds": rounds,
    }


@contextmanager
def lab_with_servers(hosts: int, servers: int, args: argparse.Namespace) -> Iterator[Lab]:
    """A lab whose last hosts are those of the servers."""
    with Lab(Topology(hosts=hosts + servers, rate=args.rate)) as lab:
        for server in range(servers):
            lab.set_rate(hosts + server, args.server_rate)
        yield lab


def open_store(job: int = 0) -> Any:
    """The store of a job, on the first host, where each has a port of its own.

    The first rank of all makes it.
    """
    import torch.distributed as dist

    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]) + job,
        is_master=os.environ["RANK"] == "0",
        wait_for_workers=False,
        timeout=timedelta(hours=1),
    )


def start_server(options: list[str], ready: int = 1) -> int:
    """Forks ``q7x2 serve``, and returns its pid when it has announced itself to `ready` jobs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        from q7x2.cli import main as command

        os._exit(command(["serve", *options]))
    os.close(writer)
    said = b""
    while said.count(b"is server") < ready:
        more = os.read(reader, 1000)
        if not more:
            raise RuntimeError(f"the server has ended: {said.decode()}")
        said += more
    return pid  # the pipe stays open, so that the server may go on speaking


def start_named_server(name: str) -> int:
    """Starts a server of the job whose store is on the first host."""
    where = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
    return start_server([*where, "--name", name])


def stop_server(pid: int, number: int = signal.SIGTERM) -> None:
    """Ends a server by a signal, if it still runs."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, number)
        os.waitpid(pid, 0)
