"""Servers of q7x2 beside the ranks of a lab: their hosts, their processes, and stores for them."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from benchmarks.harness.lab import Lab, Topology


def add_arguments(
    parser: argparse.ArgumentParser, *, hosts: int, servers: int, size: str, rounds: int
) -> None:
    """The arguments of a study with servers, with these defaults; one server is no choice."""
    parser.add_argument("--hosts", type=int, default=hosts, help="with ranks; of each job")
    parser.add_argument("--rate", default="100mbit", help="of each host's NIC, as tc spells it")
    if servers > 1:
        parser.add_argument("--servers", type=int, default=servers)
    parser.add_argument("--server-rate", default="1gbit", help="of each server's NIC")
    parser.add_argument("--size", default=size, help=f"of the tensor, for example {size}")
    parser.add_argument("--rounds", type=int, default=rounds)


@contextmanager
def lab_with_servers(hosts: int, servers: int, args: argparse.Namespace) -> Iterator[Lab]:
    """A lab whose last hosts are those of the servers."""
    with Lab(Topology(hosts=hosts + servers, rate=args.rate)) as lab:
        for server in range(servers):
            lab.set_rate(hosts + server, args.server_rate)
        yield lab


def open_store(job: int = 0, *, is_master: bool) -> Any:
    """The store of a job; each has a port of its own on the first host."""
    import torch.distributed as dist

    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]) + job,
        is_master=is_master,
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
