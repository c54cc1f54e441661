"""What is slow while bytes are on their way: a link between hosts, or the memory of a host.

Whoever waits for a rank of its own host may wait for the network all the same, because that rank
waits for it: in a ring, or below a leader. So it is the network if TCP connections between hosts
were busy for most of that time. If nothing is known of connections, as with RDMA, it is the host
only if a rank waited clearly longer for ranks of its host than any rank for those of others.

In a ring all ranks wait equally long, wherever the slow link is. So TCP connections decide, if the
ledgers know them: the slow link is the one whose connections were busy longest (see
``connections``). Otherwise, as with RDMA, it is the one whose messages were waited for longest. If
most of that has one host at one end, it is the network of that host. Hosts and pairs are named only
if they stand out from the others.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from q7x2.ledger.reader import Ledger

_Named = TypeVar("_Named", str, tuple[str, str])

# If n hosts are equal, each is at an end of 2 / n of it all. This much of the rest more is most.
_MOST = 0.3
# Times what is usual among the others.
_OUTSTANDING = 1.5
# The share of the ranks' waiting time in which a slow network is busy.
_MUCH = 0.5


def find(
    ledgers: Sequence[Ledger], waits: Mapping[object, float], share: float
) -> tuple[str | tuple[str, str] | None, str]:
    """The host, or the sending and the receiving host, and a sentence.

    ``waits``: what waiting on the critical path was for: seconds by the ranks that sent and waited.
    ``share``: how much of the job's time that was.
    """
    hosts = {ledger.rank: ledger.facts["host"] for ledger in ledgers}
    between: defaultdict[tuple[str, str], float] = defaultdict(float)
    inside: defaultdict[str, float] = defaultdict(float)
    longest = {"inside": 0.0, "between": 0.0}  # seconds of one rank
    for who, seconds in waits.items():
        if isinstance(who, tuple) and who[0] in hosts and who[1] in hosts:
            sender, receiver = hosts[who[0]], hosts[who[1]]
            if sender == receiver:
                inside[sender] += seconds
                longest["inside"] = max(longest["inside"], seconds)
            else:
                between[sender, receiver] += seconds
                longest["between"] = max(longest["between"], seconds)
    busy = _busy(ledgers)
    is_inside = longest["inside"] >= _OUTSTANDING * longest["between"]
    if busy:
        is_inside = is_inside and max(busy.values()) < _MUCH * share * _sampled(ledgers)
    between = busy or between
    if is_inside or not between:
        host = _outstanding(inside)
        text = "messages between ranks of one host take long"
        return host, text if host is None else f"{text}, mostly on {host}"
    ends: defaultdict[str, float] = defaultdict(float)
    for pair, amount in between.items():
        for host in pair:
            ends[host] += amount
    host = max(ends, key=ends.__getitem__)
    usual = 2 / len(ends)
    if len(ends) > 2 and ends[host] >= (usual + _MOST * (1 - usual)) * sum(between.values()):
        return host, f"the network of host {host} takes long"
    slowest = _outstanding(between)
    if slowest is None:
        return None, "the network between the hosts takes long"
    return slowest, f"the network from {slowest[0]} to {slowest[1]} takes long"


def _outstanding(amounts: Mapping[_Named, float]) -> _Named | None:
    """The largest, if it is the only one or clearly larger than the others; None otherwise."""
    largest = max(amounts, key=amounts.__getitem__, default=None)
    if largest is None or len(amounts) == 1:
        return largest
    others = statistics.median(each for name, each in amounts.items() if name != largest)
    return largest if amounts[largest] >= _OUTSTANDING * others else None


def _sampled(ledgers: Sequence[Ledger]) -> float:
    """Seconds from a rank's first sample to its last; the longest of the ranks."""
    moments = [[each.steady_ns for each in ledger.samples] for ledger in ledgers]
    return max((max(each) - min(each) for each in moments if each), default=0) * 1e-9


def _busy(ledgers: Sequence[Ledger]) -> defaultdict[tuple[str, str], float]:
    """Seconds by sending and receiving host; empty if nothing is known."""
    addresses: dict[str, str] = {}
    longest: dict[tuple[int, str], tuple[int, int]] = {}  # at first, and at most
    for ledger in ledgers:
        for sample in ledger.samples:
            for key, busy in sample.connections.items():
                addresses[key.split()[0]] = ledger.facts["host"]
                first, most = longest.get((ledger.rank, key), (busy, busy))
                # The total falls when a connection is closed, as at the end.
                longest[ledger.rank, key] = first, max(most, busy)
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (_, key), (first, most) in longest.items():
        local, peer = key.split()
        if peer in addresses and addresses[peer] != addresses[local]:
            found[addresses[local], addresses[peer]] += (most - first) * 1e-6
    return found if sum(found.values()) > 0 else defaultdict(float)
