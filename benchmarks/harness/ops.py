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


def _shard(n: int) -> float:
    return (n - 1) / n


@dataclass(frozen=True)
class Op:
    """One collective.

    Attributes:
        torch_call: runs it on a process group, blocking. What it returns, if anything, is waited
            for after the time has been taken.
        mpi_call: runs it on an mpi4py communicator and the buffers' NumPy views, blocking; None if
            Open MPI has nothing like it.
        expected: of (n, rank): the values a correct receive buffer holds after `dirty`, one for
            each of n equal parts or one for all; None where this rank receives nothing.
        bus_factor: of n, see above.
        crossing: the least bytes that leave hosts, over all hosts, of (S, n ranks, h hosts).
        flow: "all" (no rank can end before every rank has begun, or those that it needs),
            "from_root" or "to_root".
        in_place: whether send and receive are one buffer of S bytes.
        split_send, split_receive: whether that buffer holds S / n bytes instead of S.
        noise: what it works on, so that codecs have something to do; in place. None: numbers whose
            sums are exact.
    """

    name: str
    torch_call: Callable[[Buffers, dist.ProcessGroup], Any]
    mpi_call: Callable[[Any, Any, Any], Any] | None
    expected: Callable[[int, int], list[float] | None]
    bus_factor: Callable[[int], float] = _shard
    crossing: Callable[[int, int, int], float] = lambda s, n, h: (h - 1) * s
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


def _whole(_: int) -> float:
    return 1.0


def _total(n: int, _: int = 0) -> list[float]:
    return [n * (n + 1) / 2]


def _everyone(n: int, _: int) -> list[float]:
    return [float(rank + 1) for rank in range(n)]


def _of_root(n: int, _: int) -> list[float]:
    return [float(ROOT + 1)]


def _nothing(n: int, rank: int) -> None:
    return None


def _at_root(
    expected: Callable[[int, int], list[float]],
) -> Callable[[int, int], list[float] | None]:
    return lambda n, rank: expected(n, rank) if rank == ROOT else None


def _parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The parts of the ranks; the root alone has them."""
    return list(tensor.chunk(dist.get_world_size())) if dist.get_rank() == ROOT else None


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


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE


def _mpi_reduce(c: Any, s: Any, r: Any) -> None:
    if c.rank == ROOT:
        c.Reduce(_in_place(), r, root=ROOT)
    else:
        c.Reduce(s, None, root=ROOT)


_ALL_REDUCE = Op(
    "all_reduce",
    lambda b, g: dist.all_reduce(b.send, group=g),
    lambda c, s, r: c.Allreduce(_in_place(), r),
    _total,
    bus_factor=lambda n: 2 * _shard(n),
    crossing=lambda s, n, h: 2 * (h - 1) * s,
    in_place=True,
)
_ROOTED: dict[str, Any] = {"bus_factor": _whole, "in_place": True}
_ROOTS_PARTS: dict[str, Any] = {"crossing": lambda s, n, h: s * (1 - 1 / h)}
_EVERY_OP = (
    _ALL_REDUCE,
    replace(_ALL_REDUCE, name="all_reduce_normal", expected=_nothing, noise=Noise),
    replace(_ALL_REDUCE, name="all_reduce_clustered", expected=_nothing, noise=ClusteredNoise),
    # The two halves of an all-reduce one after the other, over the same tree where the algorithm
    # says so.
    replace(
        _ALL_REDUCE,
        name="reduce_then_broadcast",
        torch_call=_reduce_then_broadcast,
        mpi_call=None,
    ),
    # An all-reduce until its first piece is there; backends that tell of no pieces complete it.
    replace(_ALL_REDUCE, name="first_piece", torch_call=_first_piece, mpi_call=None),
    Op(
        "broadcast",
        lambda b, g: dist.broadcast(b.send, ROOT, group=g),
        lambda c, s, r: c.Bcast(r, ROOT),
        _of_root,
        flow="from_root",
        **_ROOTED,
    ),
    Op(
        "reduce",
        lambda b, g: dist.reduce(b.send, ROOT, group=g),
        _mpi_reduce,
        _at_root(_total),
        flow="to_root",
        **_ROOTED,
    ),
    Op(
        "all_gather",
        lambda b, g: all_gather_single(b.receive, b.send, group=g),
        lambda c, s, r: c.Allgather(s, r),
        _everyone,
        split_send=True,
    ),
    Op(
        "reduce_scatter",
        lambda b, g: reduce_scatter_single(b.receive, b.send, group=g),
        lambda c, s, r: c.Reduce_scatter_block(s, r),
        _total,
        split_receive=True,
    ),
    Op(
        "all_to_all",
        lambda b, g: dist.all_to_all_single(b.receive, b.send, group=g),
        lambda c, s, r: c.Alltoall(s, r),
        _everyone,
        crossing=lambda s, n, h: s * (n - n / h),
    ),
    Op(
        "gather",
        lambda b, g: dist.gather(b.send, _parts(b.receive), ROOT, group=g),
        lambda c, s, r: c.Gather(s, r if c.rank == ROOT else None, ROOT),
        _at_root(_everyone),
        flow="to_root",
        split_send=True,
        **_ROOTS_PARTS,
    ),
    Op(
        "scatter",
        lambda b, g: dist.scatter(b.receive, _parts(b.send), ROOT, group=g),
        lambda c, s, r: c.Scatter(s if c.rank == ROOT else None, r, ROOT),
        _of_root,
        flow="from_root",
        split_receive=True,
        **_ROOTS_PARTS,
    ),
    # Each rank to the next one, around the ring of all ranks.
    Op(
        "send_recv",
        _send_receive,
        lambda c, s, r: c.Sendrecv(
            s, (c.rank + 1) % c.size, recvbuf=r, source=(c.rank - 1) % c.size
        ),
        lambda n, rank: [float((rank - 1) % n + 1)],
        bus_factor=_whole,
        crossing=lambda s, n, h: h * s if h > 1 else 0,
    ),
    Op(
        "barrier",
        lambda b, g: dist.barrier(group=g),
        lambda c, s, r: c.Barrier(),
        _nothing,
        bus_factor=lambda n: 0.0,
        crossing=lambda s, n, h: 0.0,
        in_place=True,
    ),
)
OPS = {op.name: op for op in _EVERY_OP}
