"""A lab with distance: sites of virtual hosts, joined by long, slow, lossy lines.

    from tests.lab import Line, WideLab, WideTopology

    line = Line(rate="200mbit", rtt="100ms", loss="0.1%")
    with WideLab(WideTopology(sites=2, hosts_per_site=3, line=line)) as lab:
        lab.run(["python", "script.py"])          # as `Lab.run`; hosts fill the sites in order
        lab.line.change(loss="1%", rtt="20ms")    # also while ranks run, from another thread
        lab.line.cut(); lab.line.heal()           # cut((0, 1), one_way=True): from site 0 to 1
        lab.line.flap(up="1s", down="200ms")
        lab.line.counts()[0, 1].lost              # packets from site 0 to 1, counted by the wire

Hosts of a site are near each other: their NICs `eth0` are ports of a bridge, with token buckets as
in `Lab`. The bridge's namespace is the site's router. Its other NIC is a TUN device, from which one
program (`wire.cpp`) takes the packets to the routers of the other sites:

    h0 [eth0]──┐                                                  ┌──[eth0] h2
    h1 [eth0]──┴ site (bridge), router, [wan] ══ wire ══ [wan] ... ┴──[eth0] h3

What happens to a packet by chance depends on `seed`, the line and the packet's number on that line.
"""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import namespaces, wire
from tests.lab.hosts import STATE, Hosts
from tests.lab.lab import cable
from tests.lab.namespaces import LabError, call, ip
from tests.lab.topology import UNSHAPED, Network, bits_per_second
from tests.lab.wire import Line, Wire

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_SEED = "Q7X2_RANDOM_SEED"
_ROUTER = 254  # the last byte of a router's address towards its hosts
_OUTSIDE = 253  # and of the address that a masquerade shows

# Hosts behind it can connect to others, and nobody can connect to them.
_MASQUERADE = """
table inet lab {
  chain leaving { type nat hook postrouting priority 100; oifname "wan" masquerade; }
  chain passing {
    type filter hook forward priority 0;
    iifname "wan" ct state established,related accept
    iifname "wan" drop
  }
}
"""
# A burst from the hosts must find room while the wire waits for a core.
_TUN_PACKETS = "10000"


def _draw_seed() -> int:
    return int(os.environ.get(_SEED) or random.SystemRandom().randrange(1, 1_000_000))


@dataclass(frozen=True)
class WideTopology(Network):
    """`sites` places with `hosts_per_site` hosts each; a line joins each two sites.

    Attributes:
        line: all lines, until `Wire.change`.
        near: the rate of each host's NIC, as tc spells it; UNSHAPED for no limit.
        congestion: TCP's congestion control of all hosts.
        ipv6: hosts have addresses of IPv6 alone.
        nat: the sites whose hosts are behind a masquerade: they can connect to others, and nobody
            outside can connect to them.
        seed: of all that happens by chance; default Q7X2_RANDOM_SEED, or drawn.
    """

    sites: int = 2
    hosts_per_site: int = 1
    line: Line = field(default_factory=Line)
    near: str = "1gbit"
    congestion: str = "cubic"
    ipv6: bool = False
    nat: tuple[int, ...] = ()
    seed: int = field(default_factory=_draw_seed)

    def __post_init__(self) -> None:
        if not 2 <= self.sites <= 100:
            raise ValueError(f"a lab with distance has 2 to 100 sites, not {self.sites}")
        if not 1 <= self.hosts_per_site <= 200 // self.sites:
            raise ValueError(
                f"{self.sites} sites have 1 to {200 // self.sites} hosts each, "
                f"not {self.hosts_per_site}"
            )
        if self.near != UNSHAPED:
            bits_per_second(self.near)
        known = _CONGESTION.read_text().split()
        if self.congestion not in known:
            raise ValueError(
                f"this kernel's congestion controls are {', '.join(known)}; got {self.congestion!r}"
            )
        if not set(self.nat) <= set(range(self.sites)):
            raise ValueError(f"the sites are 0..{self.sites - 1}; got nat {list(self.nat)}")
        if self.seed < 0:
            raise ValueError(f"a seed is 0 or more; got {self.seed}")

    @property
    def hosts(self) -> int:  # type: ignore[override]
        return self.sites * self.hosts_per_site

    def site_of(self, host: int) -> int:
        return host // self.hosts_per_site

    def address(self, host: int) -> str:
        return self.site_address(self.site_of(host), self.number_of(host))

    def number_of(self, host: int) -> int:
        """From 1, among the hosts of its site."""
        return host % self.hosts_per_site + 1

    def site_address(self, site: int, number: int) -> str:
        """An address that the wire takes to the site."""
        return f"fd77:0:0:{site:x}::{number:x}" if self.ipv6 else f"10.77.{site}.{number}"

    def prefix(self, site: int) -> str:
        return f"fd77:0:0:{site:x}::/64" if self.ipv6 else f"10.77.{site}.0/24"

    def describe(self) -> str:
        text = f"{self.sites} sites x {self.hosts_per_site} hosts, {self.line.describe()}"
        text += f", {self.congestion}, seed {self.seed}"
        if self.ipv6:
            text += ", IPv6 only"
        return text + "".join(f", NAT before site {site}" for site in self.nat)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class WideLab(Hosts[WideTopology]):
    """Distant sites brought up; a context manager that takes them down again."""

    def __init__(self, topology: WideTopology, owner: int | None = None) -> None:
        super().__init__(topology, owner)
        self.line = Wire(wire_socket(self.name))
        self._program: subprocess.Popen[str] | None = None

    def unavailable(self) -> str | None:
        return unavailable(nat=bool(self.topology.nat))

    def down(self) -> None:
        super().down()
        if self._program is not None:
            self._program.wait()

    def router(self, site: int) -> str:
        """The network namespace of a site's router; the port of host N is its interface hN."""
        return f"{self.name}-site{site}"

    def _wire(self) -> None:
        topology = self.topology
        for site in range(topology.sites):
            self._add_site(site)
        for host in range(topology.hosts):
            self._join(host)
        self._start_program()
        for site in range(topology.sites):
            ports = [h for h in range(topology.hosts) if topology.site_of(h) == site]
            ip(
                self.router(site),
                *(f"link set h{host} master site" for host in ports),
                f"link set wan txqueuelen {_TUN_PACKETS} up",
                f"route add {'fd77::/32' if topology.ipv6 else '10.77.0.0/16'} dev wan",
                *([self._add_address("wan", site, _OUTSIDE)] if site in topology.nat else []),
            )
            if site in topology.nat:
                call("ip", "netns", "exec", self.router(site), "nft", _MASQUERADE)
        self.line.change(**asdict(topology.line))

    def _add_site(self, site: int) -> None:
        version = "ipv6" if self.topology.ipv6 else "ipv4"
        forward = f"echo 1 > /proc/sys/net/{version}/conf/all/forwarding"
        ip(
            self._add_namespace(f"site{site}", forward),
            "link add site type bridge mcast_snooping 0",
            "link set site up",
            self._add_address("site", site, _ROUTER),
            f"route add {self.topology.prefix(site)} dev site",
        )

    def _join(self, host: int) -> None:
        """The NIC of a host, and its routes, which pin the congestion control."""
        topology, name = self.topology, self._host(host)
        site = topology.site_of(host)
        cable((name, "eth0"), (self.router(site), f"h{host}"), topology.near)
        router = topology.site_address(site, _ROUTER)
        pinned = f"dev eth0 congctl {topology.congestion}"
        ip(
            name,
            self._add_address("eth0", site, topology.number_of(host)),
            f"route add {topology.prefix(site)} {pinned}",
            f"route add default via {router} {pinned}",
        )

    def _add_address(self, nic: str, site: int, number: int) -> str:
        """The route to the site is added apart: that of the kernel has no congestion control."""
        address = self.topology.site_address(site, number)
        width = 64 if self.topology.ipv6 else 24
        return f"address add {address}/{width} dev {nic} noprefixroute"

    def _kernel_settings(self) -> str:
        """What a connection learns of a path is not kept; IPv6 addresses work at once."""
        settings = super()._kernel_settings()
        settings += "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save\n"
        if self.topology.ipv6:
            settings += "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad\n"
            settings += "echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n"
        return settings

    def _start_program(self) -> None:
        """It lives in a router's namespace, with which it ends."""
        routers = [f"/run/netns/{self.router(site)}" for site in range(self.topology.sites)]
        arguments = [str(wire_socket(self.name)), str(self.topology.seed), *routers]
        self._program = subprocess.Popen(
            ["ip", "netns", "exec", self.router(0), str(wire.program()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._program.stdout is not None
        said = self._program.stdout.readline().strip()
        self._program.stdout.close()
        if said != "ready":
            raise LabError(f"the wire between the sites did not start: {said}")


def wire_socket(lab: str) -> Path:
    """Where the wire of the lab of that name takes commands."""
    return STATE / f"{lab}.wire"


def unavailable(nat: bool = False) -> str | None:
    """Why this machine cannot run a lab with distance, or None."""
    if nat and (problem := namespaces.missing({"nft": "nftables"})):
        return problem
    return namespaces.unavailable() or wire.unavailable()
