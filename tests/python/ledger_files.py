"""Ledgers of jobs that never ran: files with known operations, steps and samples."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence
from typing import Any

from q7x2._core.extension import load
from q7x2.ledger.file import LedgerFile
from q7x2.ledger.records import record_format
from q7x2.ledger.samples import Sample

MILLISECOND = 1_000_000


def operation(**values: Any) -> dict[str, Any]:
    """An all-reduce of 4 MiB from 1 ms to 11 ms, of which 6 ms were waiting for rank 1."""
    known = {
        "id": 1,
        "pg": 1,
        "operation": "all_reduce",
        "internal": 0,
        "sequence": 3,
        "plan": "ring",
        "slices": 4,
        "input_bytes": 4 << 20,
        "output_bytes": 4 << 20,
        "sent_network": 1 << 20,
        "received_network": 1 << 20,
        "sent_memory": 3 << 20,
        "received_memory": 3 << 20,
        "queued_ns": 0,
        "started_ns": MILLISECOND,
        "finished_ns": 11 * MILLISECOND,
        "select_ns": 0,
        "encode_ns": 0,
        "decode_ns": 0,
        "reduce_ns": 2 * MILLISECOND,
        "copy_ns": MILLISECOND,
        "waited_ns": 6 * MILLISECOND,
        "waited_for": 1,
        "waited_percent": 50,
        "predicted_ns": 5 * MILLISECOND,
    }
    return known | values


def packed(
    columns: Sequence[tuple[str, str, str]], operations: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Operations as ``LedgerFeed.take`` has them."""
    names: list[str] = []

    def number(value: Any) -> int:
        if value is None:
            return -1
        if isinstance(value, str):
            if value not in names:
                names.append(value)
            return names.index(value)
        return int(value)

    record = record_format(columns)
    records = [
        record.pack(*(number(each.get(name)) for name, _, _ in columns)) for each in operations
    ]
    return {
        "count": len(operations),
        "last": max((each["id"] for each in operations), default=0),
        "names": names,
        "records": b"".join(records),
    }


def write_ledger(
    directory: pathlib.Path,
    rank: int,
    operations: list[dict[str, Any]],
    behind: int = 0,
    *,
    ranks: int = 2,
    host: str | None = None,
    steps: Sequence[tuple[int, float | None]] = (),
    samples: Sequence[Sample] = (),
    lost: int | None = None,
    failure: str | None = None,
) -> None:
    """Write one rank's file. Times count from 1 s of the clock of rank 0's host.

    ``behind`` nanoseconds of it are missing on this rank's clock.
    """
    columns = load().ledger_columns()
    host = f"<h{rank}>" if host is None else host
    facts = {
        "rank": rank,
        "world_size": ranks,
        "host": host,
        "pid": 100 + rank,
        "begun_wall_ns": 0,
        "q7x2": "0",
        "torch": "0",
        "processor": "a & b",
        "machine": "x",
        "accelerator": "",
    }
    shift = 1_000 * MILLISECOND - behind
    path = directory / f"q7x2-rank{rank}-h-1.sqlite"
    file = LedgerFile(path, columns, facts, 1 << 40)
    for each in operations:
        for key in ("queued_ns", "started_ns", "finished_ns"):
            if each[key] is not None:
                each[key] += shift
    group = {
        "name": "<g>",
        "identity": "1.0",
        "rank": rank,
        "members": [{"rank": r, "pid": 100 + r, "host": f"h{r}"} for r in range(ranks)],
        "failure": failure,
    }
    batch = {
        "process": 1 + rank,
        "steady_ns": 0,
        "wall_ns": 0,
        "recorded": len(operations),
        "lost": rank if lost is None else lost,
        "operations": packed(columns, operations),
        "groups": {1: group},
        "counters": {},
    }
    file.write([batch])
    file.connection.execute("BEGIN")
    file.add_steps([(time + shift, loss) for time, loss in steps])
    for sample in samples:
        file.add_sample(dataclasses.replace(sample, steady_ns=sample.steady_ns + shift))
    file.connection.execute("COMMIT")
    file.add_clock("<g>", list(range(ranks)), rank, (behind, 1500))
    file.close()


@dataclasses.dataclass
class Training:
    """A training whose ranks compute, and then reduce one tensor, in each step.

    Times are milliseconds. ``late``: by rank, before the tensor is reduced; the processor is used
    then (``"compute"``), wanted (``"processor"``) or not needed (``"idle"``), in every step whose
    number is a multiple of ``late_every``. ``slow_host``: its
    rank sends and receives for ``slow`` ms more, on a ring. ``has_connections``: all ranks wait
    equally then, and TCP connections are known. ``per_host``: the number of
    ranks on each host. The first one waits for the first one of the host before, and the others
    wait for it. ``crowded``: for how long ranks wait for a processor, per time that they compute.
    ``busy``: the share of the time in which connections of other hosts are busy.
    """

    ranks: int = 4
    per_host: int = 1
    busy: float = 0.1
    steps: int = 50
    compute: float = 20
    crowded: float = 0
    wire: float = 5
    encode: float = 0
    late: dict[int, tuple[str, float]] = dataclasses.field(default_factory=dict)
    late_every: int = 1
    slow_host: int | None = None
    slow: float = 0
    has_connections: bool = False
    buckets: int = 1
    bucket_bytes: int = 4 << 20
    seed: int = 0
    loss_every: int = 0
    is_logged: bool = True
    watts: float | None = None

    def write(self, directory: pathlib.Path) -> float:
        """Write all files; return the duration of all steps in seconds."""
        draw = random.Random(self.seed)
        free = [0.0] * self.ranks
        used = [[0.0, 0.0] for _ in range(self.ranks)]  # ran, waited for a processor
        rows: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        ends: list[list[tuple[int, float | None]]] = [[] for _ in range(self.ranks)]
        samples: list[list[Sample]] = [[] for _ in range(self.ranks)]
        for step in range(self.steps + 1):
            loss = 1 / (1 + step) if self.loss_every and step % self.loss_every == 0 else None
            for bucket in range(self.buckets):
                starts = []
                for rank in range(self.ranks):
                    computes = self.compute / self.buckets * draw.uniform(0.95, 1.05)
                    is_late = bucket == 0 and step % self.late_every == 0
                    kind, late = self.late.get(rank, ("", 0.0)) if is_late else ("", 0.0)
                    ran = computes + (late if kind == "compute" else 0)
                    waited = self.crowded * ran + (late if kind == "processor" else 0)
                    used[rank][0] += ran
                    used[rank][1] += waited
                    idle = late if kind == "idle" else 0
                    starts.append(free[rank] + ran + waited + idle)
                took = self.encode + self.wire * draw.uniform(0.9, 1.1) + self.slow
                end = max(starts) + took
                for rank in range(self.ranks):
                    rows[rank].append(self._row(rank, step, bucket, starts[rank], end))
                    free[rank] = end
            for rank in range(self.ranks):
                ends[rank].append((round(free[rank] * MILLISECOND), loss))
                samples[rank].append(self._sample(rank, free[rank], *used[rank]))
        for rank in range(self.ranks):
            write_ledger(
                directory,
                rank,
                rows[rank],
                ranks=self.ranks,
                host=f"h{rank // self.per_host}",
                steps=ends[rank] if self.is_logged else (),
                samples=samples[rank],
                lost=0,
            )
        return (ends[0][-1][0] - ends[0][0][0]) * 1e-9

    def _row(self, rank: int, step: int, bucket: int, start: float, end: float) -> dict[str, Any]:
        leader = rank - rank % self.per_host
        left = leader if rank != leader else (rank - self.per_host) % self.ranks
        is_slow = self.slow_host in (rank, left)
        number = step * self.buckets + bucket
        return operation(
            id=1 + number,
            sequence=number,
            codec="slow" if self.encode else None,
            input_bytes=self.bucket_bytes,
            queued_ns=round(start * MILLISECOND),
            started_ns=round(start * MILLISECOND),
            finished_ns=round(end * MILLISECOND),
            encode_ns=round(self.encode * MILLISECOND),
            reduce_ns=0,
            copy_ns=0,
            waited_ns=round((end - start - self.encode) * MILLISECOND),
            waited_for=left,
            waited_percent=90 if is_slow and not self.has_connections else 40,
        )

    def _sample(self, rank: int, time: float, ran: float, waited: float) -> Sample:
        return Sample(
            steady_ns=round(time * MILLISECOND),
            cpu_ns=round(ran * MILLISECOND),
            main_cpu_ns=round(ran * MILLISECOND),
            main_delay_ns=round(waited * MILLISECOND),
            memory_bytes=1 << 30,
            energy_uj=None if self.watts is None else round(self.watts * time * 1e3),
            network={"eth0": (0, round(time * 1e3))},
            connections=self._connections(rank, time) if self.has_connections else {},
        )

    def _connections(self, rank: int, time: float) -> dict[str, int]:
        if rank % self.per_host:
            return {}
        right = (rank + self.per_host) % self.ranks
        busy = 0.5 if self.slow_host in (rank, right) else self.busy
        return {f"10.0.0.{rank} 10.0.0.{right}": round(1e3 * busy * time)}
