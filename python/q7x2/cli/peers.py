"""``q7x2 info --peers``: how each two hosts of a job are connected, measured by sending.

Every rank runs it under torchrun, as it would run a script. The first rank of each host exchanges
messages with the first ranks of the others, one pair of hosts at a time, in both directions at
once. The messages grow until an exchange takes much longer than a round trip. So the rate is that
of the path, as long calls find it, and the connections are those that such calls use.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from q7x2._core.units import time_text

if TYPE_CHECKING:
    import torch

_FIRST_BYTES = 64 << 10
_MOST_BYTES = 64 << 20
_LONG_S = 0.4
_LEAST_TRIPS = 8  # in round trips; longer exchanges show the rate
_KNOWN = ("rank", "path", "round_trip", "sent_again", "connections", "encrypted")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two hosts, as the first rank of the first one sees the way to the other."""

    hosts: tuple[str, str]
    """Their names."""
    ranks: tuple[int, int]
    """The first rank of each."""
    path: str
    """As in :attr:`q7x2.Description.peers`."""
    round_trip: float
    """The shortest that TCP has measured, in seconds; 0: not known."""
    rate: float
    """Bytes per second in each direction, with both in use."""
    sent_again: float
    """Share of the packets that were sent more than once."""
    connections: int
    """Open TCP connections."""
    encrypted: bool
    """Whether they use TLS."""


def run(*, as_json: bool = False) -> int:
    """What ``q7x2 info --peers`` does on this rank: rank 0 prints."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        print(
            "q7x2 info --peers: start it as every rank, as in\n"
            "  torchrun --nnodes 2 --nproc-per-node 1 ... -m q7x2 info --peers",
            file=sys.stderr,
        )
        return 2
    import torch.distributed as dist

    try:
        dist.init_process_group("q7x2")
        try:
            pairs = measure()
            if dist.get_rank() == 0:
                _print(pairs, as_json=as_json)
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:  # a rank is missing or has failed
        print(f"q7x2 info --peers: {error}", file=sys.stderr)
        return 1
    return 0


def measure() -> list[Pair]:
    """On all ranks of the default group. All pairs on rank 0, elsewhere nothing."""
    import torch
    import torch.distributed as dist

    import q7x2

    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = {each["ranks"][0]: each["host"] for each in q7x2.describe().hosts}
    # Before the first long call it is not known which hosts are far.
    dist.all_reduce(torch.zeros(_MOST_BYTES // 64 // 4))
    found: list[Pair] = []
    for first, second in itertools.combinations(sorted(hosts), 2):
        dist.barrier()
        if rank in (first, second):
            rate = _exchange(second if rank == first else first, leads=rank == first)
            if rank == first:
                (peer,) = (each for each in q7x2.describe().peers if each["rank"] == second)
                found.append(
                    Pair(
                        hosts=(hosts[first], hosts[second]),
                        ranks=(first, second),
                        rate=rate,
                        **{key: peer[key] for key in _KNOWN if key != "rank"},
                    )
                )
    gathered: list[list[Pair] | None] = [None] * size
    dist.gather_object(found, gathered if rank == 0 else None)
    return [pair for pairs in gathered if pairs for pair in pairs]


def _exchange(other: int, *, leads: bool) -> float:
    """Bytes per second of the longest exchange. The one that leads says how long the next is."""
    import torch

    size = _FIRST_BYTES
    shortest = _timed(other, torch.zeros(4, dtype=torch.uint8))
    word = torch.tensor([size])
    while True:
        seconds = _timed(other, torch.zeros(size, dtype=torch.uint8))
        rate = size / seconds
        if leads:
            is_long = seconds >= max(_LONG_S, _LEAST_TRIPS * shortest)
            word[0] = 0 if is_long or size == _MOST_BYTES else 2 * size
        size = _told(other, word, leads=leads)
        if size == 0:
            return rate


def _timed(other: int, data: torch.Tensor) -> float:
    import torch
    import torch.distributed as dist

    began = time.perf_counter()
    sending = dist.isend(data, other)
    dist.recv(torch.empty_like(data), other)
    assert sending is not None
    sending.wait()
    return time.perf_counter() - began


def _told(other: int, word: torch.Tensor, *, leads: bool) -> int:
    import torch.distributed as dist

    if leads:
        dist.send(word, other)
    else:
        dist.recv(word, other)
    return int(word)


def _print(pairs: list[Pair], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([dataclasses.asdict(pair) for pair in pairs], indent=2))
        return
    if not pairs:
        print("All ranks are on one host.")
        return
    from rich.console import Console
    from rich.table import Table

    from q7x2.fabric.show import rate

    table = Table("hosts", "ranks", "path", "round trip", "rate", "sent again", "TCP", "encrypted")
    for pair in pairs:
        table.add_row(
            " and ".join(pair.hosts),
            " and ".join(str(rank) for rank in pair.ranks),
            pair.path,
            time_text(pair.round_trip) if pair.round_trip else "not known",
            rate(pair.rate),
            f"{100 * pair.sent_again:.2f} %",
            f"{pair.connections} connection{'' if pair.connections == 1 else 's'}",
            "yes" if pair.encrypted else "no",
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)
