"""The shape of a virtual network: hosts on a switch, optional racks, optional private links."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

UNSHAPED = "unshaped"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def bits_per_second(rate: str) -> float:
    """`"200mbit"` -> 2e8. The unit is that of `tc`: bit, kbit, mbit or gbit per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"a rate is a number above 0 and bit, kbit, mbit or gbit; got {rate!r}")
    return float(match[1]) * _UNITS[match[2]]


class Network(ABC):
    """The hosts of a virtual network, whatever joins them."""

    hosts: int

    @abstractmethod
    def address(self, host: int) -> str:
        """The host's address on the network of all hosts."""

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    def blocks(self, ranks_per_host: int = 1) -> list[int]:
        """The host of each rank if neighbours share a host: 0, 0, 1, 1 for two ranks per host."""
        if ranks_per_host < 1:
            raise ValueError(f"expected at least 1 rank per host, got {ranks_per_host}")
        return [host for host in range(self.hosts) for _ in range(ranks_per_host)]


@dataclass(frozen=True)
class Link:
    """A private full-duplex wire between two hosts, beside the switched network."""

    a: int
    b: int
    rate: str

    @classmethod
    def parse(cls, text: str) -> Link:
        """`"0:2:100mbit"` is a wire of 100 Mbit/s between hosts 0 and 2."""
        parts = text.split(":")
        if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise ValueError(f"a link is A:B:RATE, such as 0:2:100mbit; got {text!r}")
        return cls(int(parts[0]), int(parts[1]), parts[2])


@dataclass(frozen=True)
class Topology(Network):
    """`hosts` machines, each with one NIC of `rate` on the switch of its rack.

    A rate of UNSHAPED is as fast as the kernel moves packets.

    Hosts fill the racks in order (2 racks of 4: hosts 0-3, hosts 4-7). With more than one rack,
    each rack's switch hangs on a core switch by one cable of `uplink`, shared by its hosts.
    """

    hosts: int = 4
    rate: str = "1gbit"
    racks: int = 1
    uplink: str | None = None
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= 200:
            raise ValueError(f"a lab has 1 to 200 hosts, not {self.hosts}")
        if self.racks < 1:
            raise ValueError(f"expected at least 1 rack, got {self.racks}")
        if self.hosts % self.racks:
            raise ValueError(f"{self.hosts} hosts do not divide into {self.racks} racks")
        if (self.racks > 1) != (self.uplink is not None):
            raise ValueError("an uplink rate belongs to more than one rack, and the reverse")
        links = [link.rate for link in self.links]
        for rate in (self.rate, *([self.uplink] if self.uplink else []), *links):
            if rate != UNSHAPED:
                bits_per_second(rate)
        for link in self.links:
            if link.a == link.b or not (0 <= link.a < self.hosts and 0 <= link.b < self.hosts):
                raise ValueError(
                    f"a link joins two different hosts of 0..{self.hosts - 1}; "
                    f"got {link.a} and {link.b}"
                )

    def rack_of(self, host: int) -> int:
        return host * self.racks // self.hosts

    def address(self, host: int) -> str:
        """The host's address on the switched network."""
        return f"10.77.0.{host + 1}"

    def interleaved(self, ranks_per_host: int = 1) -> list[int]:
        """The host of each rank if neighbours sit on different hosts, and in different racks.

        0, 4, 1, 5, 2, 6, 3, 7 for two racks of four hosts.
        """
        per_rack = self.hosts // self.racks
        hosts = [rack * per_rack + i for i in range(per_rack) for rack in range(self.racks)]
        return hosts * ranks_per_host

    def describe(self) -> str:
        text = f"{self.hosts} hosts x {self.rate}"
        if self.rate == UNSHAPED:
            text = f"{self.hosts} hosts, links without a limit"
        if self.racks > 1:
            text += f", {self.racks} racks with {self.uplink} uplinks"
        for link in self.links:
            text += f", private link {link.a}-{link.b} {link.rate}"
        return text

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Topology:
        return cls(**{**data, "links": tuple(Link(**link) for link in data["links"])})
