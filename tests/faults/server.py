"""Forks the processes of one host: a Python that has imported torch and has no threads.

A copy starts in some 20 ms, a new interpreter takes seconds. A host needs a server of its own,
because a forked process stays in its parent's namespaces. Requests come over a socket of the
controller: a ``Start`` is answered with the process id on the host, ``("status", pid)`` with the
exit status, or None while the process runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

from tests.faults import rank
from tests.faults.workload import Start

_PR_SET_PDEATHSIG = 1


def main(path: str, host: int) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
    gc.collect()
    gc.freeze()  # or each copy's first collection would go through the whole of torch
    with Client(path, "AF_UNIX") as control:
        control.send(f"server {host}")
        start = _serve(control)
    if start is not None:
        _become(start, path)


def _serve(control: Connection) -> Start | None:
    """Answers requests; returns a Start in a forked copy, and None when the controller is gone."""
    ended: dict[int, int] = {}

    def reap(*_: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended[pid] = os.waitstatus_to_exitcode(status)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        try:
            request: Any = control.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(request, Start):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return request
            control.send(pid)
        else:
            control.send(ended.get(request[1]))


def _become(start: Start, path: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    os.environ.update(start.env)
    with Client(path, "AF_UNIX") as control:
        if start.name == "store":
            _keep_store(control, start.store)
        else:
            control.send(start.name)
            rank.serve(control, start.store)


def _keep_store(control: Connection, address: tuple[str, int]) -> None:
    """The store outlives all ranks, as that of a torchrun agent does."""
    host, port = address
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    control.send("store")
    while True:
        time.sleep(3600)
        assert store.port == port


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
