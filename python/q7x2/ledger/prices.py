"""What a job costs, by the user's prices: money and energy per run, per step, and to a loss.

Prices come from a TOML file or a dict:

    currency = "EUR"
    node_hour = 2.40             # of one host
    kwh = 0.30
    watts = 350                  # of one host, where its energy is not measured

    [[gigabyte]]                 # per 10^9 bytes that an interface sends; the first match counts
    host = "east-*"
    interface = "eth0"
    price = 0.01

- *Hosts* are paid from their first sample to their last one, which is from the first group to the
  end of the process.
- *Bytes* are those that the interfaces of each host have counted. That is what a provider bills,
  but others on the host count too, and RDMA is not seen. ``bytes = "messages"`` takes the messages
  of q7x2 instead, without headers; then rules must have ``interface = "*"``.
- *Energy* is measured by RAPL where it may be read: that of the processors' packages, without
  memory, devices and power supply. Elsewhere it is ``watts`` times the time, called an estimate.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from q7x2._core import toml
from q7x2.ledger.reader import Ledger
from q7x2.ledger.samples import Sample

_JOULES_PER_KWH = 3.6e6


@dataclasses.dataclass(frozen=True)
class GigabytePrice:
    """The price of 10^9 bytes that matching interfaces send."""

    host: str
    interface: str
    price: float


@dataclasses.dataclass(frozen=True)
class Prices:
    """What the user pays. ``watts`` is None if there is no estimate."""

    currency: str
    node_hour: float
    kwh: float
    watts: float | None
    gigabyte: tuple[GigabytePrice, ...]
    counts_messages: bool

    @classmethod
    def read(cls, path: pathlib.Path) -> Prices:
        """The prices of a TOML file.

        Raises:
            ValueError: An entry is wrong.
            OSError: The file cannot be read.
        """
        return cls.make(toml.read(path), str(path))

    @classmethod
    def make(cls, table: Mapping[str, Any], where: str = "prices") -> Prices:
        """The prices of a dict.

        Raises:
            ValueError: An entry is wrong.
        """
        entries = toml.Entries(table, where)
        watts = entries.number("watts", -1.0, least=-1.0)
        counts_messages = entries.text("bytes", "interfaces", ("interfaces", "messages"))
        prices = cls(
            currency=entries.text("currency", "USD"),
            node_hour=entries.number("node_hour", 0.0),
            kwh=entries.number("kwh", 0.0),
            watts=None if watts < 0 else watts,
            gigabyte=tuple(_gigabyte(each) for each in entries.tables("gigabyte")),
            counts_messages=counts_messages == "messages",
        )
        entries.end()
        if prices.counts_messages and any(each.interface != "*" for each in prices.gigabyte):
            raise ValueError(
                f'{where}: bytes = "messages" knows no interfaces; expected interface = "*"'
            )
        return prices

    def of_gigabyte(self, host: str, interface: str) -> float:
        """The price of the first rule that matches; 0 if none does."""
        for rule in self.gigabyte:
            if fnmatch.fnmatchcase(host, rule.host) and fnmatch.fnmatchcase(
                interface, rule.interface
            ):
                return rule.price
        return 0.0


def _gigabyte(entries: toml.Entries) -> GigabytePrice:
    rule = GigabytePrice(
        entries.text("host", "*"), entries.text("interface", "*"), entries.number("price")
    )
    entries.end()
    return rule


@dataclasses.dataclass(frozen=True)
class Bill:
    """What a span of a job costs. Money is in ``currency``.

    Attributes:
        seconds: How long it is.
        node_hours: The sum over all hosts.
        sent: Bytes by host and interface.
        joules: The sum over all hosts; None if a host's energy is neither measured nor estimated.
        estimated_hosts: Whose energy is an estimate.
    """

    currency: str
    seconds: float
    node_hours: float
    nodes: float
    sent: dict[tuple[str, str], float]
    traffic: float
    joules: float | None
    energy: float
    estimated_hosts: tuple[str, ...]

    @property
    def money(self) -> float:
        """All of it."""
        return self.nodes + self.traffic + self.energy

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "currency": self.currency,
            "seconds": self.seconds,
            "node_hours": self.node_hours,
            "money": self.money,
            "money_nodes": self.nodes,
            "money_traffic": self.traffic,
            "money_energy": self.energy,
            "bytes": sum(self.sent.values()),
            "joules": self.joules,
            "energy_estimated_on": list(self.estimated_hosts),
        }


def bill(ledgers: Sequence[Ledger], prices: Prices, until: int | None = None) -> Bill:
    """What a job costs up to ``until``, nanoseconds on rank 0's clock (None: its end)."""
    hosts: dict[str, list[Ledger]] = {}
    for ledger in ledgers:
        hosts.setdefault(ledger.facts["host"], []).append(ledger)
    longest = node_seconds = joules = traffic = 0.0
    sent: dict[tuple[str, str], float] = {}
    estimated = []
    is_known = True
    for host, its in hosts.items():
        samples = [ledger.samples for ledger in its]
        first = min((each[0].steady_ns for each in samples if each), default=0)
        last = max((each[-1].steady_ns for each in samples if each), default=0)
        end = last if until is None else min(max(until, first), last)
        seconds = (end - first) * 1e-9
        longest = max(longest, seconds)
        node_seconds += seconds
        measured = _joules(samples, end)
        if measured is not None:
            joules += measured
        elif prices.watts is not None:
            joules += prices.watts * seconds
            estimated.append(host)
        else:
            is_known = False
        for interface, count in _sent(its, samples, prices, end).items():
            sent[host, interface] = count
            traffic += prices.of_gigabyte(host, interface) * count * 1e-9
    return Bill(
        currency=prices.currency,
        seconds=longest,
        node_hours=node_seconds / 3600,
        nodes=prices.node_hour * node_seconds / 3600,
        sent=sent,
        traffic=traffic,
        joules=joules if is_known else None,
        energy=prices.kwh * joules / _JOULES_PER_KWH,
        estimated_hosts=tuple(estimated),
    )


def _joules(samples: Sequence[Sequence[Sample]], end: int) -> float | None:
    """The energy of a host. Its ranks read the same counters, so one that may read them counts."""
    for each in samples:
        known = [sample for sample in each if sample.energy_uj is not None]
        if len(known) >= 2:
            return 1e-6 * _grown(known, lambda sample: float(sample.energy_uj or 0), end)
    return None


def _sent(
    ledgers: Sequence[Ledger], samples: Sequence[Sequence[Sample]], prices: Prices, end: int
) -> dict[str, float]:
    if prices.counts_messages:
        return {"*": float(sum(_messages(ledger, end) for ledger in ledgers))}
    # The earliest and the longest: all ranks of a host read the same counters.
    chosen = max(samples, key=lambda each: each[-1].steady_ns - each[0].steady_ns if each else -1)
    found = {}
    for interface in {name for sample in chosen for name in sample.network}:
        known = [sample for sample in chosen if interface in sample.network]
        found[interface] = _grown(known, _sent_through(interface), end)
    return found


def _sent_through(interface: str) -> Callable[[Sample], float]:
    return lambda sample: float(sample.network[interface][1])


def _messages(ledger: Ledger, end: int) -> int:
    condition = f"finished_ns + {ledger.offset_ns} <= {end}"
    ((count,),) = ledger.rows(("COALESCE(SUM(sent_network), 0)",), condition)
    return int(count)


def _grown(samples: Sequence[Sample], total: Callable[[Sample], float], time: int) -> float:
    """How far a total has grown until ``time``, interpolated between samples."""
    first = total(samples[0])
    index = bisect_right(samples, time, key=lambda sample: sample.steady_ns)
    if index == 0:
        return 0.0
    if index == len(samples):
        return total(samples[-1]) - first
    before, after = samples[index - 1], samples[index]
    share = (time - before.steady_ns) / (after.steady_ns - before.steady_ns)
    return total(before) + share * (total(after) - total(before)) - first
