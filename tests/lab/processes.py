"""Runs one process per rank: output collected, a deadline, and nobody left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OnLine = Callable[[int, str], None]

# When a rank has failed, the others get this long to notice it and report their own view.
FAILURE_GRACE_S = 10.0
TERMINATE_GRACE_S = 2.0
# A rank dies with the process that started it, even when that one is killed: ranks that spin for a
# launcher that is gone would take the machine away from everybody.
TIED = ("setpriv", "--pdeathsig", "KILL", "--")
# Below those that kernels hand out to connections.
_PORTS = range(20000, 32000)


@dataclass
class RankResult:
    rank: int
    returncode: int | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "".join(self.lines)


class RanksFailed(RuntimeError):
    """At least one rank failed or ran past the deadline; the text holds every rank's last lines."""

    def __init__(self, reason: str, results: Sequence[RankResult]) -> None:
        tails = [
            f"--- rank {r.rank}, exit status {r.returncode}\n{''.join(r.lines[-30:])}"
            for r in results
        ]
        super().__init__(reason + "\n" + "\n".join(tails))
        self.results = list(results)


def run_ranks(
    commands: Sequence[Sequence[str]],
    environments: Sequence[dict[str, str]],
    timeout_s: float,
    on_line: OnLine | None = None,
    clean_up: Callable[[], None] | None = None,
) -> list[RankResult]:
    """Starts all commands, waits for all, and raises RanksFailed unless every one exits with 0.

    Args:
        commands: the argument vector of each rank.
        environments: the whole environment of each rank.
        timeout_s: when it has passed, all ranks are killed.
        on_line: is given (rank, line) as the lines come, from reader threads.
        clean_up: ends what the ranks may have left running, once they themselves have ended.
    """
    results = [RankResult(rank) for rank in range(len(commands))]
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []

    def read(rank: int) -> None:
        stream = processes[rank].stdout
        assert stream is not None
        for line in stream:
            results[rank].lines.append(line)
            if on_line:
                on_line(rank, line)

    reason = ""
    try:
        for rank, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            processes.append(
                subprocess.Popen(
                    [*TIED, *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            )
            readers.append(threading.Thread(target=read, args=(rank,), daemon=True))
            readers[-1].start()
        deadline = time.monotonic() + timeout_s
        while True:
            states = [process.poll() for process in processes]
            failed = [rank for rank, state in enumerate(states) if state]
            if failed and not reason:
                reason = f"rank {failed[0]} failed first"
                deadline = min(deadline, time.monotonic() + FAILURE_GRACE_S)
            if None not in states:
                break
            if time.monotonic() > deadline:
                reason = reason or f"not finished after {timeout_s:g} s"
                break
            time.sleep(0.02)
    finally:
        _end(processes)
        if clean_up:
            clean_up()
        for reader in readers:
            # A grandchild may hold the pipe open; its output is not worth a hang.
            reader.join(timeout=2)
    for result, process in zip(results, processes, strict=True):
        result.returncode = process.returncode
    if reason:
        raise RanksFailed(reason, results)
    return results


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """SIGTERM first, because mpirun passes that on; then SIGKILL to the whole session."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + TERMINATE_GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def meeting(ranks: int) -> list[dict[str, str]]:
    """What each rank of this machine reads in order to meet the others."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def free_port() -> int:
    """A TCP port for a listener that starts some seconds from now.

    One that the kernel handed out would be any other program's to get in the meantime.
    """
    chance = random.SystemRandom()
    for _ in _PORTS:
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no TCP port from {_PORTS.start} to {_PORTS.stop - 1} seems to be free")
