"""``q7x2 serve``: a process that joins a job without a rank, and adds up what its ranks send.

For several jobs it starts a process for each, which share a pool of memory (plan/serve_jobs.py).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from q7x2._core.argument_types import count
from q7x2.fabric.arguments import size
from q7x2.plan import relay
from q7x2.plan.serve_jobs import make_pool, place_of, serve_jobs

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

Say = Callable[[str], None]

# How long one search for groups takes, and so how soon a signal is noticed.
_LOOK = timedelta(milliseconds=200)
# One attempt to reach the job's store, in seconds.
_ATTEMPT = 5.0


def add_parser(commands: Any) -> None:
    """Add ``serve`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "serve",
        help="serve jobs: add up what their ranks send",
        description="Joins jobs as a server, without a rank. Groups that are made from then on "
        "may send it what they reduce. It ends with its jobs, on Ctrl-C and on SIGTERM.",
    )
    parser.add_argument("--master-addr", metavar="HOST", help="the job's MASTER_ADDR")
    parser.add_argument(
        "--master-port",
        type=count(1, 65535, "a port"),
        metavar="PORT",
        help="the job's MASTER_PORT",
    )
    parser.add_argument(
        "--job",
        action="append",
        default=[],
        type=_job,
        metavar="HOST:PORT",
        help="the same in one word; may be given several times",
    )
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="for what ranks send, of all jobs together, for example 64M; calls that find too "
        "little are made by the ranks (no limit)",
    )
    _add_relay_arguments(parser)
    parser.add_argument("--slots", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--name", help="what the job calls it (the name of this host)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for the job's store (%(default)g)",
    )
    parser.set_defaults(run=_run)


def _add_relay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a relay is told."""
    of_relay = parser.add_argument_group("a relay between processes behind NAT")
    of_relay.add_argument(
        "--relay",
        type=_relay_place,
        metavar="[HOST:]PORT",
        help="instead of adding up: pass on the connections of processes that cannot reach each "
        "other, and say Q7X2_RELAY=<this machine>:PORT",
    )
    of_relay.add_argument(
        "--store",
        type=count(1, 65535, "a port"),
        metavar="PORT",
        help="hold the jobs' store, too: it is their MASTER_ADDR and MASTER_PORT",
    )
    of_relay.add_argument(
        "--most-connections",
        type=count(2, 1_000_000),
        default=4096,
        metavar="N",
        help="of a job at once (%(default)s)",
    )
    of_relay.add_argument(
        "--rate",
        type=size,
        metavar="SIZE",
        help="of a job in a second, both directions together, for example 100MB (no limit)",
    )


def _relay_place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"expected [HOST:]PORT, not {text!r}")
    return host.strip("[]"), int(port)


def _job(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def _jobs(options: argparse.Namespace) -> list[tuple[str, int]]:
    named = (options.master_addr, options.master_port)
    if (named[0] is None) != (named[1] is None):
        raise ValueError("expected both --master-addr and --master-port")
    jobs = [*options.job] if named[0] is None else [named, *options.job]
    if not jobs:
        raise ValueError("expected --master-addr and --master-port, or --job HOST:PORT")
    for _, port in jobs:
        if not 1 <= port <= 65535:
            raise ValueError(f"expected a port from 1 to 65535, got {port}")
    if not options.timeout > 0:
        raise ValueError(f"--timeout: expected seconds above 0, got {options.timeout:g}")
    if len(set(jobs)) < len(jobs):
        raise ValueError("expected different jobs: one is named twice")
    return jobs


def _run(options: argparse.Namespace) -> int:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, _stop) for number in numbers]
    say = _sayer()
    try:
        if options.relay is not None:
            return relay.run(options, say)
        if options.store is not None:
            raise ValueError("--store: expected --relay, too")
        jobs = _jobs(options)
        if len(jobs) > 1:
            return serve_jobs(jobs, options)
        if options.slots is not None:
            say = _sayer(jobs[0])
        return _serve(jobs[0], options, say)
    except _Stopped:
        return _end("was told to stop", say)
    except (RuntimeError, ValueError) as error:
        print(f"q7x2 serve: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Stopped(BaseException):
    """A signal says that the server is to end."""


def _stop(*_: object) -> None:
    raise _Stopped


def _serve(job: tuple[str, int], options: argparse.Namespace, say: Say) -> int:
    # A process that is killed while it writes into another one's queue in shared memory blocks that
    # queue for ever. Ranks must outlive servers, so servers talk by TCP also to their own host.
    os.environ.setdefault("UCX_TLS", "^sm")
    from q7x2._core.extension import load

    server_class = load().Server
    store = _store_of(job, options.timeout)
    name = options.name or socket.gethostname()
    slots = options.slots
    if options.memory is not None:
        slots = [make_pool(1), 0, options.memory]
    parent = os.getppid() if options.slots is not None else None
    server = server_class(store, name, slots and tuple(slots))
    say(f"is server {server.number} ('{name}') of the job at {place_of(job)}")
    try:
        while server.look(_LOOK):
            for sentence in server.take_news():
                say(sentence)
            if parent is not None and os.getppid() != parent:
                raise _Stopped
    finally:
        server.leave()
        for sentence in server.take_news():
            say(sentence)
    return _end("the job has ended", say)


def _store_of(job: tuple[str, int], timeout: float) -> TCPStore:
    """The job's store. No signal is noticed during an attempt, so each one is short."""
    from torch._C._distributed_c10d import TCPStore

    end = time.monotonic() + timeout
    while True:
        left = max(1.0, min(_ATTEMPT, end - time.monotonic()))
        try:
            return TCPStore(
                *job,
                world_size=None,
                is_master=False,
                timeout=timedelta(seconds=left),
                wait_for_workers=False,
            )
        except RuntimeError:
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"the job's store at {place_of(job)} does not answer within {timeout:g} s"
                ) from None


def _end(why: str, say: Say) -> int:
    say(f"ends: {why}")
    return 0


def _sayer(job: tuple[str, int] | None = None) -> Say:
    """Prints sentences. `job`: said in each of them, where there are several."""
    which = f" [{place_of(job)}]" if job else ""
    return lambda sentence: print(f"q7x2 serve{which}: {sentence}", flush=True)
