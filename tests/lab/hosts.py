"""Virtual hosts on one machine, and the jobs that run on them.

A host is a network, IPC, PID, UTS and mount namespace with a host name and a /dev/shm of its own,
so that two ranks on different hosts share neither memory nor process ids: a network namespace alone
would leave shared memory open to them. What joins the hosts is a subclass: `Lab` has a switch,
`WideLab` has lines between distant sites.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.lab import namespaces
from tests.lab.namespaces import LabError, call
from tests.lab.processes import OnLine, RankResult, run_ranks
from tests.lab.topology import Network

STATE = Path("/run/q7x2-lab")
N = TypeVar("N", bound=Network)
H = TypeVar("H", bound="Hosts[Any]")

# Interfaces that are made later stay free of IPv6, whose housekeeping would count as traffic.
_NO_IPV6 = """
if [ -d /proc/sys/net/ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; fi
"""

# Number 1 of a host: sets the host up, says so, then reaps whatever is left to it.
_INIT = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o size=50% tmpfs /dev/shm
ip link set lo up
eval "$3"
echo ready
exec < /dev/null > /dev/null 2>&1
while :; do sleep 86400 & wait; done
"""


@dataclass(frozen=True)
class Traffic:
    """Bytes over the NICs of one host."""

    received: int
    sent: int


@dataclass
class LabRun:
    ranks: list[RankResult]
    traffic: list[Traffic]
    seconds: float


class Hosts(ABC, Generic[N]):
    """The hosts of a network brought up; a context manager that takes them down again."""

    def __init__(self, topology: N, owner: int | None = None) -> None:
        """`owner` is the process whose death makes the hosts stale; default the caller's."""
        self.topology = topology
        self.name = namespaces.lab_name(os.getpid() if owner is None else owner)
        self._inits: list[int] = []

    def __enter__(self: H) -> H:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        if problem := self.unavailable():
            raise LabError(problem)
        remove_stale()
        STATE.mkdir(exist_ok=True)
        try:
            hosts_file = self._write_state()
            for host in range(self.topology.hosts):
                call("ip", "netns", "add", self._host(host))
                self._start_host(host, hosts_file)
            self._wire()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        remove(self.name)

    def unavailable(self) -> str | None:
        """Why this machine cannot bring the hosts up, or None."""
        return namespaces.unavailable()

    def _kernel_settings(self) -> str:
        """Commands that each namespace runs before it gets NICs."""
        return _NO_IPV6

    @abstractmethod
    def _wire(self) -> None:
        """Joins the hosts, which are up: each gets its NIC `eth0`."""

    def run(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int | None = None,
        placement: Sequence[int] | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float = 120,
        on_line: OnLine | None = None,
    ) -> LabRun:
        """Runs `command` as every rank of one job and returns when all have ended.

        Args:
            command: argument vector; the working directory is the caller's.
            ranks_per_host: ranks on each host; default: as many as the placement has, or 1.
            placement: the host of each rank; default: `topology.blocks(ranks_per_host)`.
            env: added to the caller's environment, which has the variables torchrun would set.
            timeout_s: all ranks are killed after it.

        Raises:
            RanksFailed: a rank exited with another status than 0, or the time was up.
        """
        if ranks_per_host is None:
            ranks_per_host = len(placement or ()) // self.topology.hosts or 1
        blocks = self.topology.blocks(ranks_per_host)
        hosts = blocks if placement is None else list(placement)
        if sorted(hosts) != blocks:
            raise ValueError(
                f"a placement names each of the {self.topology.hosts} hosts once for each of its "
                f"{ranks_per_host} ranks; got {hosts}"
            )
        port = random.randrange(20000, 30000)
        commands, environments = [], []
        for rank, host in enumerate(hosts):
            commands.append([*self.enter(host), *command])
            environments.append(
                {
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(hosts)),
                    "LOCAL_RANK": str(hosts[:rank].count(host)),
                    "LOCAL_WORLD_SIZE": str(ranks_per_host),
                    "MASTER_ADDR": self.topology.address(hosts[0]),
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    # What is measured here is true of no other lab whose hosts have these names.
                    "XDG_CACHE_HOME": str(_cache(self.name)),
                    **(env or {}),
                }
            )
        before = self.traffic()
        start = time.monotonic()
        ranks = run_ranks(commands, environments, timeout_s, on_line, self._clear)
        seconds = time.monotonic() - start
        traffic = [
            Traffic(b.received - a.received, b.sent - a.sent)
            for a, b in zip(before, self.traffic(), strict=True)
        ]
        return LabRun(ranks, traffic, seconds)

    def traffic(self) -> list[Traffic]:
        """Bytes so far over all NICs of each host, loopback left out."""
        totals = []
        for host in range(self.topology.hosts):
            links = json.loads(call("ip", "-n", self._host(host), "-j", "-s", "link", "show"))
            stats = [link["stats64"] for link in links if link["ifname"] != "lo"]
            totals.append(
                Traffic(sum(s["rx"]["bytes"] for s in stats), sum(s["tx"]["bytes"] for s in stats))
            )
        return totals

    def pids(self, host: int) -> list[int]:
        """The processes on a host, by the numbers that the caller knows them by."""
        return namespaces.pids(self._host(host))

    def _host(self, host: int) -> str:
        return f"{self.name}-h{host}"

    def _write_state(self) -> Path:
        (STATE / f"{self.name}.json").write_text(json.dumps(self.topology.to_json()))
        hosts_file = STATE / f"{self.name}.hosts"
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.topology.address(h)} h{h}" for h in range(self.topology.hosts)]
        hosts_file.write_text("\n".join(lines) + "\n")
        return hosts_file

    def _start_host(self, host: int, hosts_file: Path) -> None:
        holder = subprocess.Popen(
            [
                *("ip", "netns", "exec", self._host(host)),
                *("unshare", "--ipc", "--pid", "--uts", "--mount", "--fork", "--mount-proc"),
                *("--kill-child", "sh", "-c", _INIT, "init", f"h{host}", str(hosts_file)),
                self._kernel_settings(),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if said != "ready":
            raise LabError(f"virtual host h{host} did not start: {said}{holder.stdout.read()}")
        holder.stdout.close()
        self._inits.append(namespaces.init_pid(self._host(host)))

    def enter(self, host: int) -> list[str]:
        """What to put before a command that shall run on a host and end with the caller."""
        return [
            *("nsenter", "--target", str(self._inits[host])),
            *("--mount", "--uts", "--ipc", "--net", "--pid", f"--wdns={Path.cwd()}"),
            *("setpriv", "--pdeathsig", "KILL", "--"),
        ]

    def _clear(self) -> None:
        """Ends every process on the hosts but each host's number 1."""
        for host, init in enumerate(self._inits):
            left = set(namespaces.pids(self._host(host))) - {init}
            namespaces.kill([pid for pid in left if _in_pid_namespace(pid)])

    def _add_namespace(self, part: str, settings: str = "") -> str:
        """A network namespace beside those of the hosts, for what joins them."""
        name = f"{self.name}-{part}"
        call("ip", "netns", "add", name)
        call("ip", "netns", "exec", name, "sh", "-ec", self._kernel_settings() + settings)
        return name


def _in_pid_namespace(pid: int) -> bool:
    """False for the holder of a host, which lives in our PID namespace."""
    try:
        mine, its = (Path(f"/proc/{p}/ns/pid").readlink() for p in ("self", pid))
    except OSError:
        return False
    return mine != its


def _cache(name: str) -> Path:
    """Where the processes of a lab keep what they have measured."""
    return STATE / f"{name}.cache"


def remove(name: str) -> None:
    """Takes the lab of that name down and forgets it."""
    namespaces.destroy(namespaces.labs().get(name, []))
    shutil.rmtree(_cache(name), ignore_errors=True)
    for suffix in ("json", "hosts", "wire"):
        (STATE / f"{name}.{suffix}").unlink(missing_ok=True)


def remove_stale() -> list[str]:
    """Removes the labs whose owners are dead; returns their names."""
    known = set(namespaces.labs()) | {path.stem for path in STATE.glob("q7x2-*.json")}
    stale = sorted(name for name in known if namespaces.owner(name) is None)
    for name in stale:
        remove(name)
    return stale
