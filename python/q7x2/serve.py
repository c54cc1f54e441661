"""``q7x2 serve``: a process that joins a job without a rank, and adds up what its ranks send."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

# How long one look for groups takes: so soon a signal is noticed.
_LOOK = timedelta(milliseconds=200)
# One attempt to reach the job's store, in seconds.
_ATTEMPT = 5.0


def add_parser(commands: Any) -> None:
    """Add ``serve`` to the subcommands of the ``q7x2`` command."""
    parser = commands.add_parser(
        "serve",
        help="serve a job: add up what its ranks send",
        description="Joins a job as a server, without a rank. Groups that are made from then on "
        "may send it what they reduce. It ends with the job, on Ctrl-C and on SIGTERM.",
    )
    parser.add_argument(
        "--master-addr", required=True, metavar="HOST", help="the job's MASTER_ADDR"
    )
    parser.add_argument(
        "--master-port", required=True, type=int, metavar="PORT", help="the job's MASTER_PORT"
    )
    parser.add_argument("--name", help="what the job calls it (the name of this host)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for the job's store (%(default)g)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, _stop) for number in numbers]
    try:
        return _serve(options)
    except _Stopped:
        return _end("was told to stop")
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


def _serve(options: argparse.Namespace) -> int:
    # A process that is killed while it writes into another one's queue in shared memory blocks that
    # queue for ever. Ranks must outlive servers, so servers talk by TCP also to their own host.
    os.environ.setdefault("UCX_TLS", "^sm")
    from q7x2._extension import load

    server_class = load().Server
    store = _store_of(options)
    name = options.name or socket.gethostname()
    server = server_class(store, name)
    _say(f"is server {server.number} ('{name}') of the job at {_place(options)}")
    try:
        while server.look(_LOOK):
            for sentence in server.take_news():
                _say(sentence)
    finally:
        server.leave()
        for sentence in server.take_news():
            _say(sentence)
    return _end("the job has ended")


def _place(options: argparse.Namespace) -> str:
    return f"{options.master_addr}:{options.master_port}"


def _store_of(options: argparse.Namespace) -> TCPStore:
    """The job's store. No signal is noticed during an attempt, so each one is short."""
    from torch._C._distributed_c10d import TCPStore

    end = time.monotonic() + options.timeout
    while True:
        left = max(1.0, min(_ATTEMPT, end - time.monotonic()))
        try:
            return TCPStore(
                options.master_addr,
                options.master_port,
                world_size=None,
                is_master=False,
                timeout=timedelta(seconds=left),
                wait_for_workers=False,
            )
        except RuntimeError:
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"the job's store at {_place(options)} does not answer within "
                    f"{options.timeout:g} s"
                ) from None


def _end(why: str) -> int:
    _say(f"ends: {why}")
    return 0


def _say(sentence: str) -> None:
    print(f"q7x2 serve: {sentence}", flush=True)
