"""Hosts with ranks that outlive the trials: what died is replaced, what lives is used again.

    controller ──unix socket── server of host 0 ──forks── rank 0, rank 1, the store
               ──unix socket── server of host 1 ──forks── rank 2, rank 3

Unix sockets and files are shared by virtual hosts, networks and process ids are not. The controller
signals a rank by the process id that the rank has in the controller's namespace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.harness.ranks import python_path
from tests.faults.workload import Start
from tests.lab import Lab, Topology
from tests.lab.processes import free_port

_START_S = 60.0  # a server imports torch
_COMMAND_S = 30.0
RATE = "1gbit"
STORE_PORT = 29400
STORE_HOST = 0

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "Q7X2_PROBE": "0",  # the cells name their algorithms
}


class RankLost(RuntimeError):
    """A rank ended, hung or raised where it should not have; the text has its last output."""

    def __init__(self, member: Member, what: str) -> None:
        super().__init__(f"rank {member.rank} {what}\n{member.tail()}")
        self.member = member


@dataclass
class Member:
    """One rank process."""

    rank: int
    host: int
    name: str
    pid: int  # as the controller sees it
    pid_on_host: int
    control: Connection
    log: Path
    log_start: int = 0
    is_lost: bool = False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def output(self) -> str:
        """What it has printed since the trial began."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output().splitlines()[-40:])

    def tell(self, command: str, **arguments: Any) -> None:
        # The answer tells of a rank that is gone.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.control.send((command, arguments))


def _threads(pid: int) -> list[str]:
    """The names of a process's threads and where in the kernel each of them waits."""
    threads = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):  # one that has just ended
            name, where = ((task / each).read_text().strip() for each in ("comm", "wchan"))
            threads.append(f"{name} in {where}")
    return threads


class Site:
    """A context manager. `hosts` is 1 for this machine itself, else virtual hosts are made.

    >>> with Site(hosts=2, ranks_per_host=2) as site:                     # doctest: +SKIP
    ...     site.join(timeout=10)
    ...     site.members[1].signal(signal.SIGKILL)
    """

    def __init__(self, hosts: int, ranks_per_host: int, env: dict[str, str] | None = None) -> None:
        self.hosts = hosts
        self.host_of = [h for h in range(hosts) for _ in range(ranks_per_host)]
        self.world = len(self.host_of)
        self.members: list[Member] = []
        self.lab: Lab | None = None
        self._env = env or {}
        self._epochs = 0
        self._names = 0
        self._servers: dict[int, Connection] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Site:
        self._folder = Path(tempfile.mkdtemp(prefix="q7x2-faults-"))
        self._socket = str(self._folder / "control")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._socket)
        self._listener.listen(64)
        try:
            if self.hosts > 1:
                self.lab = Lab(Topology(hosts=self.hosts, rate=RATE))
                self.lab.up()
            self._start_servers()
            self.members = [self._start_rank(rank) for rank in range(self.world)]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.signal(signal.SIGKILL)
            member.control.close()
        for server in self._servers.values():
            server.close()  # it ends, and so does the store
        for process in self._processes:
            process.kill()
            process.wait()
        if self.lab is not None:
            self.lab.down()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- processes ---------------------------------------------------------------------------

    def _start_servers(self) -> None:
        if self.lab is None:
            self.store = ("127.0.0.1", free_port())
        else:
            self.store = (self.lab.topology.address(STORE_HOST), STORE_PORT)
        for host in range(self.hosts):
            enter = ["setpriv", "--pdeathsig", "KILL", "--"]
            if self.lab is not None:
                enter = self.lab.enter(host)
            command = [*enter, sys.executable, "-m", "tests.faults.server", self._socket]
            self._processes.append(
                subprocess.Popen(
                    [*command, str(host)],
                    env={
                        **os.environ,
                        **_ENVIRONMENT,
                        "XDG_CACHE_HOME": str(self._folder),
                        "PYTHONPATH": python_path(),
                        **self._env,
                    },
                    stdin=subprocess.DEVNULL,
                )
            )
        for _ in range(self.hosts):
            server, hello = self._accept(_START_S)
            self._servers[int(hello.split()[1])] = server
        self._fork(0, "store")

    def _accept(self, timeout: float) -> tuple[Connection, str]:
        self._listener.settimeout(timeout)
        connection = Connection(self._listener.accept()[0].detach())
        return connection, connection.recv()

    def _fork(self, host: int, name: str) -> tuple[Connection, int, Path]:
        log = self._folder / f"{name}.log"
        server = self._servers[host]
        server.send(Start(name, str(log), {"MASTER_ADDR": self.store[0]}, self.store))
        pid_on_host = server.recv()
        control, hello = self._accept(_START_S)
        if hello != name:
            raise RuntimeError(f"expected a hello of {name}, got {hello}")
        return control, pid_on_host, log

    def _start_rank(self, rank: int) -> Member:
        self._names += 1
        name = f"rank{rank}-{self._names}"
        control, pid_on_host, log = self._fork(self.host_of[rank], name)
        return Member(
            rank=rank,
            host=self.host_of[rank],
            name=name,
            pid=_peer_pid(control),
            pid_on_host=pid_on_host,
            control=control,
            log=log,
        )

    def replace(self, rank: int) -> None:
        """Ends the process of a rank, if it lives, and starts another one."""
        old = self.members[rank]
        old.signal(signal.SIGKILL)
        old.control.close()
        old.log.unlink(missing_ok=True)
        self.members[rank] = self._start_rank(rank)

    def exit_status(self, member: Member, patience: float = 2.0) -> int | None:
        """None if it still runs after `patience` seconds; a signal is a negative number."""
        server = self._servers[member.host]
        end = time.monotonic() + patience
        while True:
            server.send(("status", member.pid_on_host))
            status: int | None = server.recv()
            if status is not None or time.monotonic() > end:
                return status
            time.sleep(0.01)

    # ---- commands ----------------------------------------------------------------------------

    def answer(self, member: Member, deadline: float) -> tuple[str, Any]:
        """The next message of a rank; raises RankLost if it ended or says nothing."""
        try:
            if member.control.poll(max(0.0, deadline - time.monotonic())):
                message: tuple[str, Any] = member.control.recv()
                if message[0] == "failed":
                    raise RankLost(member, f"failed:\n{message[1]}")
                return message
        except (EOFError, ConnectionResetError):
            member.is_lost = True
            status = self.exit_status(member)
            raise RankLost(member, f"ended with status {status}") from None
        raise self.hang(member)

    def hang(self, member: Member) -> RankLost:
        """What to raise for a rank that hangs; its log gets the stacks of its threads."""
        member.is_lost = True
        member.signal(signal.SIGCONT)
        member.signal(signal.SIGUSR1)
        time.sleep(0.3)
        return RankLost(member, f"hangs; its threads: {', '.join(_threads(member.pid))}")

    def ask(self, member: Member, command: str, seconds: float = _COMMAND_S, **kwargs: Any) -> Any:
        """The result of one command on one rank."""
        member.tell(command, **kwargs)
        return self.answer(member, time.monotonic() + seconds)[1]

    def epoch(self) -> str:
        """A name that the store has not seen."""
        self._epochs += 1
        return f"epoch{self._epochs}"

    def join(self, timeout: float, algorithm: str = "") -> float:
        """All ranks make the default group; returns the seconds of the slowest."""
        epoch = self.epoch()
        for member in self.members:
            member.tell(
                "join",
                rank=member.rank,
                world=self.world,
                epoch=epoch,
                timeout=timeout,
                algorithm=algorithm,
                patience=_COMMAND_S,
            )
        deadline = time.monotonic() + _COMMAND_S
        return max(self.answer(member, deadline)[1] for member in self.members)

    def prepare(self) -> None:
        """Tells all ranks what they need to make the default group themselves."""
        epoch = self.epoch()
        for member in self.members:
            self.ask(member, "prepare", rank=member.rank, world=self.world, epoch=epoch)

    def leave(self) -> list[str]:
        """All ranks that live destroy their groups, the others are replaced; returns problems."""
        problems = []
        for member in self.members:
            if not member.is_lost:
                member.tell("leave")
        deadline = time.monotonic() + 10
        for member in self.members:
            if member.is_lost:
                continue
            try:
                self.answer(member, deadline)
            except RankLost as lost:
                member.is_lost = True
                problems.append(f"destroy_process_group: {lost}")
        for member in list(self.members):
            if member.is_lost:
                self.replace(member.rank)
            else:
                member.log_start = member.log.stat().st_size
        return problems


def _peer_pid(connection: Connection) -> int:
    """The process at the other end, as this namespace numbers it."""
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        size = struct.calcsize("3i")
        credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
