"""The interleaved measurement of one collective at one size, as one rank runs it.

Backends take turns in short blocks inside the same processes, so that whatever else the machine
does, and however its clock drifts, hits all of them alike. Before each operation the
input is written by the CPU. All ranks share the machine's monotonic clock, so an operation's time
is taken across ranks: from the entry of the last rank whose data a result needs to the return of
the last rank. Where ranks would otherwise not begin together (writing a large buffer takes them
unequally long; a rooted collective lets some run ahead) they meet at a start line first.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from benchmarks.harness.backends import Backend
from benchmarks.harness.ops import Op
from benchmarks.harness.startline import StartLine

# Writing this much takes every rank well below a microsecond of the other ranks' time.
_LINE_ABOVE_BYTES = 65536
_MAX_ITERATIONS_PER_BLOCK = 1000


@dataclass
class Samples:
    """One rank's stamps in nanoseconds, one list for each block."""

    start: list[list[int]] = field(default_factory=list)
    end: list[list[int]] = field(default_factory=list)
    cpu: list[list[int]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    share: float = 1.0  # see Backend


def bytes_sent() -> int:
    """Bytes that left this (virtual) host so far, over all its NICs."""
    return sum(
        int((nic / "statistics/tx_bytes").read_text())
        for nic in Path("/sys/class/net").iterdir()
        if nic.name != "lo"
    )


def measure(
    op: Op,
    size: int,
    backends: dict[str, Backend],
    line: StartLine,
    blocks: int,
    block_seconds: float,
) -> dict[str, Samples]:
    """Measures every backend and returns this rank's samples by label.

    The default process group must exist: between blocks it keeps ranks together.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    buffers = op.buffers(size, n)
    calls = {label: backend.bind(op, buffers) for label, backend in backends.items()}
    wait = line.wait if size > _LINE_ABOVE_BYTES or op.flow != "all" else None

    def block(label: str, iterations: int) -> Samples:
        call = calls[label]
        start, end, cpu = [], [], []
        with backends[label].turn():
            for _ in range(iterations):
                buffers.dirty(rank)
                if wait:
                    wait()
                cpu_before = time.process_time_ns()
                start.append(time.monotonic_ns())
                rest = call()
                end.append(time.monotonic_ns())
                if rest is not None:
                    rest.wait()
                cpu.append(time.process_time_ns() - cpu_before)
        return Samples([start], [end], [cpu])

    iterations, warm_ups = {}, {}
    for label in calls:
        buffers.receive.zero_()
        dist.barrier()
        # The first operation also connects, so it only tells whether more of them are affordable.
        first = _agree(_seconds_each(block, label, 1))
        if backends[label].computes:
            op.check(buffers, n, rank, backends[label].tolerance)
        block(label, backends[label].settles)
        seconds = _agree(_seconds_each(block, label, 4 if first < block_seconds else 1))
        iterations[label] = min(_MAX_ITERATIONS_PER_BLOCK, max(1, round(block_seconds / seconds)))
        warm_ups[label] = 2 if seconds < block_seconds else 0

    samples = {label: Samples(share=backends[label].share) for label in calls}
    gc.collect()
    gc.disable()
    try:
        for turn in range(blocks):
            # In an order drawn anew, the same on all ranks: nobody always follows the same other.
            for label in random.Random(turn).sample(list(calls), len(calls)):
                buffers.receive.zero_()
                dist.barrier()
                block(label, warm_ups[label])
                dist.barrier()
                sent = bytes_sent()
                done = block(label, iterations[label])
                dist.barrier()
                samples[label].sent.append(bytes_sent() - sent)
                samples[label].start += done.start
                samples[label].end += done.end
                samples[label].cpu += done.cpu
                if backends[label].computes:
                    op.check(buffers, n, rank, backends[label].tolerance)
    finally:
        gc.enable()
    return samples


def _seconds_each(block: Callable[[str, int], Samples], label: str, times: int) -> float:
    """How long one round of a block takes, what is not measured included."""
    start = time.monotonic()
    block(label, times)
    return (time.monotonic() - start) / times


def _agree(value: float) -> float:
    """Rank 0's value, on all ranks."""
    holder = [value]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]
