"""Virtual hosts joined by switches and real, shaped links.

The NIC `eth0` of a host is one end of a veth pair; the other end is a port of a bridge in one more
namespace, so the machine's own network is never touched. Both ends carry a token bucket of the
link's rate:

    h0 [eth0 ⊏tbf]────[tbf⊐ h0 ┐                          racks: rack0 ─[tbf]══[tbf]─ core
    h1 [eth0 ⊏tbf]────[tbf⊐ h1 ┴ rack0 (bridge)
"""

from __future__ import annotations

import json

from tests.lab import namespaces
from tests.lab.hosts import STATE, Hosts
from tests.lab.namespaces import call
from tests.lab.topology import UNSHAPED, Topology, bits_per_second

# A GSO packet has up to 64 KiB and must fit the bucket, else it is dropped.
_BURST_BYTES = 131072
# Queue behind the bucket: 20 ms, as in a switch with a moderate buffer.
_QUEUE_S = 0.02


class Lab(Hosts[Topology]):
    """A topology brought up; a context manager that takes it down again.

    >>> with Lab(Topology(hosts=2, rate="1gbit")) as lab:                 # doctest: +SKIP
    ...     lab.run(["hostname"]).ranks[1].output
    'h1\\n'
    """

    @classmethod
    def attach(cls, name: str) -> Lab:
        """The lab of that name, brought up by another process."""
        lab = cls.__new__(cls)
        lab.name = name
        lab.topology = Topology.from_json(json.loads((STATE / f"{name}.json").read_text()))
        lab._inits = [namespaces.init_pid(lab._host(h)) for h in range(lab.topology.hosts)]
        return lab

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

    @property
    def switch(self) -> str:
        """The network namespace of the bridges; the port of host N is its interface hN."""
        return f"{self.name}-switch"

    def _wire(self) -> None:
        topology = self.topology
        self._add_namespace("switch")
        for rack in range(topology.racks):
            self._add_bridge(f"rack{rack}")
        if topology.uplink:
            self._add_bridge("core")
            for rack in range(topology.racks):
                up, down = (self.switch, f"up{rack}"), (self.switch, f"down{rack}")
                cable(up, down, topology.uplink)
                call("ip", "-n", self.switch, "link", "set", up[1], "master", f"rack{rack}")
                call("ip", "-n", self.switch, "link", "set", down[1], "master", "core")
        for host in range(topology.hosts):
            cable((self._host(host), "eth0"), (self.switch, f"h{host}"), topology.rate)
            bridge = f"rack{topology.rack_of(host)}"
            call("ip", "-n", self.switch, "link", "set", f"h{host}", "master", bridge)
            self._address(host, "eth0", f"{topology.address(host)}/24")
        for index, link in enumerate(topology.links):
            name = f"link{index}"
            cable((self._host(link.a), name), (self._host(link.b), name), link.rate)
            self._address(link.a, name, f"10.78.{index}.1/24")
            self._address(link.b, name, f"10.78.{index}.2/24")

    def _add_bridge(self, name: str) -> None:
        call("ip", "-n", self.switch, "link", "add", name, "type", "bridge")
        call("ip", "-n", self.switch, "link", "set", name, "up")

    def _address(self, host: int, nic: str, address: str) -> None:
        call("ip", "-n", self._host(host), "address", "add", address, "dev", nic)


def cable(one: tuple[str, str], other: tuple[str, str], rate: str) -> None:
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
