"""Several jobs of one ``q7x2 serve``: a process for each, which share a pool of memory.

The pool is a file in memory with a number for each process: the bytes that it holds. The processes
look at all numbers before they take slots (csrc/servers/slot_pool.h). If one dies, its number is
set to 0 here, so that the others have what it held.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time

_PAUSE = 0.1  # seconds between two checks of the processes
_NUMBER = 8  # bytes


def place_of(job: tuple[str, int]) -> str:
    """The job's store, as a person writes it."""
    return f"{job[0]}:{job[1]}"


def make_pool(processes: int) -> int:
    """The descriptor of a new pool's file, in which nobody holds anything."""
    descriptor = os.memfd_create("q7x2-slots")
    os.ftruncate(descriptor, _NUMBER * processes)
    return descriptor


def serve_jobs(jobs: list[tuple[str, int]], options: argparse.Namespace) -> int:
    """Serve each job by a process of its own. The exit status is 1 if one of them failed."""
    pool = make_pool(len(jobs))
    memory = 2**62 if options.memory is None else options.memory
    processes = []
    try:
        for number, job in enumerate(jobs):
            slots = json.dumps([pool, number, memory])
            command = [sys.executable, "-m", "q7x2", "serve", "--slots", slots]
            command += ["--job", place_of(job), "--timeout", str(options.timeout)]
            if options.name:
                command += ["--name", options.name]
            processes.append(subprocess.Popen(command, pass_fds=[pool]))
        return _await(processes, pool)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()
        os.close(pool)


def _await(processes: list[subprocess.Popen[bytes]], pool: int) -> int:
    running = dict(enumerate(processes))
    failed = 0
    while running:
        for number, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[number]
            failed |= code != 0
            os.pwrite(pool, bytes(_NUMBER), _NUMBER * number)
        time.sleep(_PAUSE)
    return int(failed)
