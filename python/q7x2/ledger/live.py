"""What a job has done in its last seconds, from its ledgers, for ``q7x2 top``."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

from q7x2.ledger.reader import Ledger
from q7x2.ledger.recorded import COLUMNS, RecordedOperation
from q7x2.ledger.samples import Sample

# How many of the newest operations of a ledger are read.
_MOST_OPERATIONS = 20_000


@dataclasses.dataclass
class LiveRank:
    """One rank. Rates are per second.

    Attributes:
        operations: That ended.
        network: Bytes of messages sent through networks.
        memory: Bytes sent through shared memory.
        waiting: Share of the time in operations; None: there were none.
        slowest: The rank for which it waited longest; None: it waited for nobody.
        interfaces: Bytes received and sent by interface of its host.
        ran: Processor seconds of all threads; None if that is unknown.
        delayed: Share of the time in which the main thread waited for a processor.
        resident: Memory in bytes.
        age: Seconds since the ledger was written, by the clocks of both hosts.
    """

    rank: int
    host: str
    operations: float
    failed: int
    network: float
    memory: float
    waiting: float | None
    slowest: int | None
    interfaces: dict[str, tuple[float, float]]
    ran: float | None
    delayed: float | None
    resident: int
    age: float


@dataclasses.dataclass
class LivePlan:
    """Operations of equal name, Plan, codec and size class. ``rate``: per second and rank."""

    operation: str
    plan: str
    codec: str
    bytes: int
    rate: float
    median: float
    measured_to_predicted: float | None


@dataclasses.dataclass
class Live:
    """A job's last seconds."""

    seconds: float
    ranks: list[LiveRank]
    plans: list[LivePlan]
    links: dict[tuple[str, str], float]  # hosts that sent and waited: seconds of waiting per second


def look(ledgers: Sequence[Ledger], window: float) -> Live:
    """The last ``window`` seconds before the newest sample of any rank."""
    length = round(window * 1e9)
    samples = [ledger.last_samples(window) for ledger in ledgers]
    end = max((each[-1].steady_ns for each in samples if each), default=0)
    kinds: dict[tuple[str, str, str, int], list[tuple[int, int | None]]] = {}
    largest: dict[tuple[str, str, str, int], int] = {}
    links: defaultdict[tuple[str, str], float] = defaultdict(float)
    hosts = {ledger.rank: ledger.facts["host"] for ledger in ledgers}
    ranks = []
    for ledger, its in zip(ledgers, samples, strict=True):
        groups = ledger.groups()
        waits: defaultdict[int, float] = defaultdict(float)
        count = failed = network = memory = took = waited = 0
        newest = ledger.newest(COLUMNS, _MOST_OPERATIONS, end - length)
        for each in map(RecordedOperation._make, newest):
            count += 1
            network += each.sent_network
            memory += each.sent_memory
            if each.error is not None or each.started_ns is None:
                failed += each.error is not None
                continue
            time_ns = each.finished_ns - each.started_ns
            took += time_ns
            waited += each.waited_ns
            if each.waited_for is not None and (each.runtime, each.pg) in groups:
                peer = groups[each.runtime, each.pg]["members"][each.waited_for]["rank"]
                seconds = each.waited_ns * each.waited_percent * 1e-11
                waits[peer] += seconds
                links[hosts.get(peer, "?"), ledger.facts["host"]] += seconds / window
            shown = "preparation" if each.internal else each.operation
            key = shown, each.plan or "", each.codec or "", each.bytes.bit_length()
            kinds.setdefault(key, []).append((time_ns, each.predicted_ns))
            largest[key] = max(largest.get(key, 0), each.bytes)
        ran, delayed = _use(its)
        ranks.append(
            LiveRank(
                rank=ledger.rank,
                host=ledger.facts["host"],
                operations=count / window,
                failed=failed,
                network=network / window,
                memory=memory / window,
                waiting=waited / took if took else None,
                slowest=max(waits, key=waits.__getitem__, default=None),
                interfaces=_rates(its),
                ran=ran,
                delayed=delayed,
                resident=its[-1].memory_bytes if its else 0,
                age=time.time() - ledger.written_wall_ns() * 1e-9,
            )
        )
    plans = [
        _plan(key, largest[key], its, window * max(len(ledgers), 1)) for key, its in kinds.items()
    ]
    plans.sort(key=lambda plan: -plan.rate * plan.median)
    return Live(window, ranks, plans, dict(links))


def _plan(
    key: tuple[str, str, str, int],
    size: int,
    operations: Sequence[tuple[int, int | None]],
    rank_seconds: float,
) -> LivePlan:
    predicted = [(took, expected) for took, expected in operations if expected]
    ratio = None
    if predicted:
        ratio = sum(took for took, _ in predicted) / sum(expected for _, expected in predicted)
    return LivePlan(
        operation=key[0],
        plan=key[1],
        codec=key[2],
        bytes=size,
        rate=len(operations) / rank_seconds,
        median=statistics.median(took for took, _ in operations) * 1e-9,
        measured_to_predicted=ratio,
    )


def _use(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    if len(samples) < 2 or samples[-1].steady_ns == samples[0].steady_ns:
        return None, None
    first, last = samples[0], samples[-1]
    length = last.steady_ns - first.steady_ns
    delayed = None
    if first.main_delay_ns is not None and last.main_delay_ns is not None:
        delayed = (last.main_delay_ns - first.main_delay_ns) / length
    return (last.cpu_ns - first.cpu_ns) / length, delayed


def _rates(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    if len(samples) < 2 or samples[-1].steady_ns == samples[0].steady_ns:
        return {}
    first, last = samples[0], samples[-1]
    seconds = (last.steady_ns - first.steady_ns) * 1e-9
    return {
        name: (
            (received - first.network[name][0]) / seconds,
            (sent - first.network[name][1]) / seconds,
        )
        for name, (received, sent) in last.network.items()
        if name in first.network
    }
