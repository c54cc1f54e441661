"""The collectives as benchmarks see them, and messages: buffers, call, check, the bytes they move.

A size S is counted as in nccl-tests: the larger of the whole send and the whole receive buffer of
one rank. From the time t of an operation follow the algorithm bandwidth S / t and the bus bandwidth
S / t x factor, with the factor that makes the figure comparable to the rate of a link whatever the
number of ranks n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness.torch_compat import all_gather_single, reduce_scatter_single

DTYPE = torch.float32
ROOT = 0


@dataclass
class Buffers:
    """What one rank sends and receives; the same tensor where the operation works in place."""

    send: torch.Tensor
    receive: torch.Tensor

    def dirty(self, rank: int) -> None:
        """Writes the input with the CPU, as a training step does before it communicates."""
        self.send.fill_(rank + 1)


class Noise(Buffers):
    """Normal numbers, the same for a rank every time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor, tensor)
        self._values = torch.empty(0)

    def dirty(self, rank: int) -> None:
        if self._values.numel() == 0:
            self._values = self.of(rank)
        self.send.copy_(self._values)

    def of(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(self.send.numel(), generator=generator)


class ClusteredNoise(Noise):
    """Normal numbers, of which nearly all large ones lie in 1/64 of the tensor, as in one layer."""

    def of(self, rank: int) -> torch.Tensor:
        values = super().of(rank)
        values[values.numel() // 2 :][: values.numel() // 64] *= 50
        return values


@dataclass(frozen=True)
class Op:
    """One collective.

    Attributes:
        bus_factor: of n, see above.
        crossing: the least bytes that leave hosts, over all hosts, of (S, n ranks, h hosts).
        flow: "all" (no rank can end before every rank has begun, or those that it needs),
            "from_root" or "to_root".
        in_place: whether send and receive are one buffer of S bytes.
        split_send, split_receive: whether that buffer holds S / n bytes instead of S.
        torch_call: runs it on a process group, blocking. What it returns, if anything, is waited
            for after the time has been taken.
        mpi_call: runs it on an mpi4py communicator and the buffers' NumPy views, blocking.
        noise: what it works on, so that codecs have something to do; in place. None: numbers whose
            sums are exact.
        expected: of (n, rank): the values a correct receive buffer holds after `dirty`, one for
            each of n equal parts or one for all; None where this rank receives nothing.
    """

    name: str
    bus_factor: Callable[[int], float]
    crossing: Callable[[int, int, int], float]
    torch_call: Callable[[Buffers, dist.ProcessGroup], Any]
    mpi_call: Callable[[Any, Any, Any], Any]
    expected: Callable[[int, int], list[float] | None]
    flow: str = "all"
    in_place: bool = False
    split_send: bool = False
    split_receive: bool = False
    noise: type[Noise] | None = None

    def round_size(self, size: int, n: int) -> int:
        """The nearest size from above of which each rank can hold an equal part.

        A barrier has one size, whatever is asked for: it moves nothing.
        """
        if self.bus_factor(n) == 0:
            return DTYPE.itemsize
        unit = DTYPE.itemsize * (1 if self.in_place else n)
        return max(unit, -(-size // unit) * unit)

    def tuned_size(self, size: int, n: int) -> int:
        """The bytes by which `q7x2.tune` counts: of the buffer, or of each part."""
        return size if self.in_place else size // n

    def buffers(self, size: int, n: int) -> Buffers:
        count = size // DTYPE.itemsize
        send = torch.zeros(count // n if self.split_send else count, dtype=DTYPE)
        if self.noise is not None:
            return self.noise(send)
        if self.in_place:
            return Buffers(send, send)
        return Buffers(send, torch.zeros(count // n if self.split_receive else count, dtype=DTYPE))

    def check(self, buffers: Buffers, n: int, rank: int, tolerance: float) -> None:
        """Raises ValueError unless the receive buffer holds the right values."""
        if isinstance(buffers, Noise):
            total = torch.zeros_like(buffers.receive)
            for each in range(n):
                total += buffers.of(each)
            error = float((buffers.receive - total).norm() / total.norm())
            if not error <= max(tolerance, 1e-6):
                raise ValueError(f"{self.name}: relative error {error} on rank {rank} of {n}")
            return
        expected = self.expected(n, rank)
        if expected is None:
            return
        parts = buffers.receive.view(len(expected), -1)
        for index, value in enumerate(expected):
            if not bool((parts[index] == value).all()):
                got = parts[index][parts[index] != value][0].item()
                raise ValueError(
                    f"{self.name}: rank {rank} of {n} holds {got} in part {index} of "
                    f"{len(expected)}, expected {value}"
                )


def _total(n: int) -> float:
    return n * (n + 1) / 2


def _everyone(n: int, _: int) -> list[float]:
    return [float(rank + 1) for rank in range(n)]


def _shard(n: int) -> float:
    return (n - 1) / n


def _parts(tensor: torch.Tensor, n: int) -> list[torch.Tensor]:
    return list(tensor.chunk(n))


def _reduce_then_broadcast(buffers: Buffers, group: dist.ProcessGroup) -> None:
    middle = dist.get_world_size() // 2
    dist.reduce(buffers.send, middle, group=group)
    dist.broadcast(buffers.send, middle, group=group)


def _send_receive(buffers: Buffers, group: dist.ProcessGroup) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    sent = dist.isend(buffers.send, (rank + 1) % n, group=group)
    dist.recv(buffers.receive, (rank - 1) % n, group=group)
    assert sent is not None
    sent.wait()


def _first_piece(buffers: Buffers, group: dist.ProcessGroup) -> Any:
    work = dist.all_reduce(buffers.send, group=group, async_op=True)
    if not hasattr(work, "wait_bytes"):
        work.wait()
        return None
    work.wait_bytes(1)
    return work


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


_ALL_REDUCE = Op(
    name="all_reduce",
    bus_factor=lambda n: 2 * _shard(n),
    crossing=lambda s, n, h: 2 * (h - 1) * s,
    in_place=True,
    torch_call=lambda b, g: dist.all_reduce(b.send, group=g),
    mpi_call=lambda c, s, r: c.Allreduce(_mpi().IN_PLACE, r),
    expected=lambda n, rank: [_total(n)],
)

OPS = {
    op.name: op
    for op in (
        _ALL_REDUCE,
        *(
            replace(_ALL_REDUCE, name=name, expected=lambda n, rank: None, noise=noise)
            for name, noise in (
                ("all_reduce_normal", Noise),
                ("all_reduce_clustered", ClusteredNoise),
            )
        ),
        # The two halves of an all-reduce one after the other, over the same tree where the
        # algorithm says so.
        replace(
            _ALL_REDUCE,
            name="reduce_then_broadcast",
            torch_call=_reduce_then_broadcast,
            mpi_call=lambda c, s, r: None,
        ),
        # An all-reduce until its first piece is there; backends that tell of no pieces complete it.
        replace(
            _ALL_REDUCE,
            name="first_piece",
            torch_call=_first_piece,
            mpi_call=lambda c, s, r: None,
        ),
        Op(
            name="broadcast",
            bus_factor=lambda n: 1.0,
            crossing=lambda s, n, h: (h - 1) * s,
            flow="from_root",
            in_place=True,
            torch_call=lambda b, g: dist.broadcast(b.send, ROOT, group=g),
            mpi_call=lambda c, s, r: c.Bcast(r, ROOT),
            expected=lambda n, rank: [float(ROOT + 1)],
        ),
        Op(
            name="reduce",
            bus_factor=lambda n: 1.0,
            crossing=lambda s, n, h: (h - 1) * s,
            flow="to_root",
            in_place=True,
            torch_call=lambda b, g: dist.reduce(b.send, ROOT, group=g),
            mpi_call=lambda c, s, r: (
                c.Reduce(_mpi().IN_PLACE, r, root=ROOT)
                if c.rank == ROOT
                else c.Reduce(s, None, root=ROOT)
            ),
            expected=lambda n, rank: [_total(n)] if rank == ROOT else None,
        ),
        Op(
            name="all_gather",
            bus_factor=_shard,
            crossing=lambda s, n, h: (h - 1) * s,
            split_send=True,
            torch_call=lambda b, g: all_gather_single(b.receive, b.send, group=g),
            mpi_call=lambda c, s, r: c.Allgather(s, r),
            expected=_everyone,
        ),
        Op(
            name="reduce_scatter",
            bus_factor=_shard,
            crossing=lambda s, n, h: (h - 1) * s,
            split_receive=True,
            torch_call=lambda b, g: reduce_scatter_single(b.receive, b.send, group=g),
            mpi_call=lambda c, s, r: c.Reduce_scatter_block(s, r),
            expected=lambda n, rank: [_total(n)],
        ),
        Op(
            name="all_to_all",
            bus_factor=_shard,
            crossing=lambda s, n, h: s * (n - n / h),
            torch_call=lambda b, g: dist.all_to_all_single(b.receive, b.send, group=g),
            mpi_call=lambda c, s, r: c.Alltoall(s, r),
            expected=_everyone,
        ),
        Op(
            name="gather",
            bus_factor=_shard,
            crossing=lambda s, n, h: s * (1 - 1 / h),
            flow="to_root",
            split_send=True,
            torch_call=lambda b, g: dist.gather(
                b.send,
                _parts(b.receive, dist.get_world_size()) if dist.get_rank() == ROOT else None,
                ROOT,
                group=g,
            ),
            mpi_call=lambda c, s, r: c.Gather(s, r if c.rank == ROOT else None, ROOT),
            expected=lambda n, rank: _everyone(n, rank) if rank == ROOT else None,
        ),
        Op(
            name="scatter",
            bus_factor=_shard,
            crossing=lambda s, n, h: s * (1 - 1 / h),
            flow="from_root",
            split_receive=True,
            torch_call=lambda b, g: dist.scatter(
                b.receive,
                _parts(b.send, dist.get_world_size()) if dist.get_rank() == ROOT else None,
                ROOT,
                group=g,
            ),
            mpi_call=lambda c, s, r: c.Scatter(s if c.rank == ROOT else None, r, ROOT),
            expected=lambda n, rank: [float(ROOT + 1)],
        ),
        # Each rank to the next one, around the ring of all ranks.
        Op(
            name="send_recv",
            bus_factor=lambda n: 1.0,
            crossing=lambda s, n, h: h * s if h > 1 else 0,
            torch_call=_send_receive,
            mpi_call=lambda c, s, r: c.Sendrecv(
                s, (c.rank + 1) % c.size, recvbuf=r, source=(c.rank - 1) % c.size
            ),
            expected=lambda n, rank: [float((rank - 1) % n + 1)],
        ),
        Op(
            name="barrier",
            bus_factor=lambda n: 0.0,
            crossing=lambda s, n, h: 0.0,
            in_place=True,
            torch_call=lambda b, g: dist.barrier(group=g),
            mpi_call=lambda c, s, r: c.Barrier(),
            expected=lambda n, rank: None,
        ),
    )
}
