"""Virtual hosts on one machine, joined by real, shaped links.

A host is a network, IPC, PID, UTS and mount namespace with a host name and a /dev/shm of its own,
so that two ranks on different hosts share neither memory nor process ids: a network namespace alone
would leave shared memory open to them. Its NIC `eth0` is one end of a veth pair; the other end is a
port of a bridge in one more namespace, so the machine's own network is never touched. Both ends
carry a token bucket of the link's rate:

    h0 [eth0 ⊏tbf]────[tbf⊐ h0 ┐                          racks: rack0 ─[tbf]══[tbf]─ core
    h1 [eth0 ⊏tbf]────[tbf⊐ h1 ┴ rack0 (bridge)
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.lab import namespaces
from benchmarks.harness.lab.namespaces import LabError, call
from benchmarks.harness.lab.topology import UNSHAPED, Topology, bits_per_second
from benchmarks.harness.processes import OnLine, RankResult, run_ranks

STATE = Path("/run/q7x2-lab")

# A GSO packet has up to 64 KiB and must fit the bucket, else it is dropped.
_BURST_BYTES = 131072
# Queue behind the bucket: 20 ms, as in a switch with a moderate buffer.
_QUEUE_S = 0.02

# Interfaces that are made later stay free of IPv6, whose housekeeping would count as traffic.
_NO_IPV6 = """
if [ -d /proc/sys/net/ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; fi
"""

# Number 1 of a host: sets the host up, says so, then reaps whatever is left to it.
_INIT = f"""
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o size=50% tmpfs /dev/shm
ip link set lo up
{_NO_IPV6}
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


class Lab:
    """A topology brought up; a context manager that takes it down again.

    >>> with Lab(Topology(hosts=2, rate="1gbit")) as lab:                 # doctest: +SKIP
    ...     lab.run(["hostname"]).ranks[1].output
    'h1\\n'
    """

    def __init__(self, topology: Topology, owner: int | None = None) -> None:
        """`owner` is the process whose death makes the lab stale; default the caller's."""
        self.topology = topology
        self.name = namespaces.lab_name(os.getpid() if owner is None else owner)
        self._inits: list[int] = []

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @classmethod
    def attach(cls, name: str) -> Lab:
        """The lab of that name, brought up by another process."""
        lab = cls.__new__(cls)
        lab.name = name
        lab.topology = Topology.from_json(json.loads((STATE / f"{name}.json").read_text()))
        lab._inits = [namespaces.init_pid(lab._host(h)) for h in range(lab.topology.hosts)]
        return lab

    def up(self) -> None:
        if problem := namespaces.unavailable():
            raise LabError(problem)
        remove_stale()
        STATE.mkdir(exist_ok=True)
        try:
            hosts_file = self._write_state()
            call("ip", "netns", "add", self.switch)
            call("ip", "netns", "exec", self.switch, "sh", "-c", _NO_IPV6)
            for host in range(self.topology.hosts):
                call("ip", "netns", "add", self._host(host))
                self._start_host(host, hosts_file)
            self._wire()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        remove(self.name)

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

    def set_rate(self, host: int, rate: str) -> None:
        """Shape the NIC of a host anew, in both directions; labs that are UNSHAPED cannot."""
        bits_per_second(rate)
        for namespace, interface in ((self._host(host), "eth0"), (self.switch, f"h{host}")):
            _shape("change", namespace, interface, rate)

    def set_link_rate(self, index: int, rate: str) -> None:
        """Shape a private link anew, in both directions."""
        bits_per_second(rate)
        link = self.topology.links[index]
        for host in (link.a, link.b):
            _shape("change", self._host(host), f"link{index}", rate)

    def set_uplink(self, rack: int, rate: str) -> None:
        """Shape the cable of a rack anew, in both directions."""
        bits_per_second(rate)
        for interface in (f"up{rack}", f"down{rack}"):
            _shape("change", self.switch, interface, rate)

    def set_pair_rate(self, a: int, b: int, rate: str) -> None:
        """Shape what two hosts send each other over the switch, as on a slow route.

        Others keep the rate of the topology. A host is in one such pair at most.
        """
        bits_per_second(rate)
        for host, peer in ((a, b), (b, a)):
            _shape_one_peer(self._host(host), self.topology.rate, self.topology.address(peer), rate)

    def pids(self, host: int) -> list[int]:
        """The processes on a host, by the numbers that the caller knows them by."""
        return namespaces.pids(self._host(host))

    @property
    def switch(self) -> str:
        """The network namespace of the bridges; the port of host N is its interface hN."""
        return f"{self.name}-switch"

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

    def _wire(self) -> None:
        topology = self.topology
        for rack in range(topology.racks):
            self._add_bridge(f"rack{rack}")
        if topology.uplink:
            self._add_bridge("core")
            for rack in range(topology.racks):
                up, down = (self.switch, f"up{rack}"), (self.switch, f"down{rack}")
                _cable(up, down, topology.uplink)
                call("ip", "-n", self.switch, "link", "set", up[1], "master", f"rack{rack}")
                call("ip", "-n", self.switch, "link", "set", down[1], "master", "core")
        for host in range(topology.hosts):
            _cable((self._host(host), "eth0"), (self.switch, f"h{host}"), topology.rate)
            bridge = f"rack{topology.rack_of(host)}"
            call("ip", "-n", self.switch, "link", "set", f"h{host}", "master", bridge)
            self._address(host, "eth0", f"{topology.address(host)}/24")
        for index, link in enumerate(topology.links):
            name = f"link{index}"
            _cable((self._host(link.a), name), (self._host(link.b), name), link.rate)
            self._address(link.a, name, f"10.78.{index}.1/24")
            self._address(link.b, name, f"10.78.{index}.2/24")

    def _add_bridge(self, name: str) -> None:
        call("ip", "-n", self.switch, "link", "add", name, "type", "bridge")
        call("ip", "-n", self.switch, "link", "set", name, "up")

    def _address(self, host: int, nic: str, address: str) -> None:
        call("ip", "-n", self._host(host), "address", "add", address, "dev", nic)


def _cable(one: tuple[str, str], other: tuple[str, str], rate: str) -> None:
    """A veth pair between two (namespace, interface), up at both ends, and shaped if wanted."""
    call(
        *("ip", "link", "add", one[1], "netns", one[0]),
        *("type", "veth", "peer", "name", other[1], "netns", other[0]),
    )
    for namespace, interface in (one, other):
        if rate != UNSHAPED:
            _shape("add", namespace, interface, rate)
        call("ip", "-n", namespace, "link", "set", interface, "up")


def _shape(action: str, namespace: str, interface: str, rate: str) -> None:
    call(
        *("tc", "-n", namespace, "qdisc", action, "dev", interface, "root", "tbf"),
        *("rate", rate, "burst", f"{_BURST_BYTES}b", "limit", _queue(rate)),
    )


def _queue(rate: str) -> str:
    """The bytes that may wait behind the bucket of this rate."""
    return str(int(bits_per_second(rate) / 8 * _QUEUE_S) + _BURST_BYTES)


def _shape_one_peer(namespace: str, rate: str, peer: str, peer_rate: str) -> None:
    """``eth0`` of a host: one rate for all, and within it another one towards one address."""
    tc = ("tc", "-n", namespace)
    call(*tc, "qdisc", "del", "dev", "eth0", "root")
    call(*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10")
    every = ("dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", rate)
    call(*tc, "class", "add", *every, "burst", f"{_BURST_BYTES}b")
    for number, each in (("1:10", rate), ("1:20", peer_rate)):
        leaf = ("dev", "eth0", "parent", "1:1", "classid", number, "htb", "rate", each)
        call(*tc, "class", "add", *leaf, "ceil", each, "burst", f"{_BURST_BYTES}b")
        call(*tc, "qdisc", "add", "dev", "eth0", "parent", number, "bfifo", "limit", _queue(each))
    match = ("u32", "match", "ip", "dst", f"{peer}/32", "flowid", "1:20")
    call(*tc, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", *match)


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
    for suffix in ("json", "hosts"):
        (STATE / f"{name}.{suffix}").unlink(missing_ok=True)


def remove_stale() -> list[str]:
    """Removes the labs whose owners are dead; returns their names."""
    known = set(namespaces.labs()) | {path.stem for path in STATE.glob("q7x2-*.json")}
    stale = sorted(name for name in known if namespaces.owner(name) is None)
    for name in stale:
        remove(name)
    return stale
