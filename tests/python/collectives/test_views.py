"""Conjugate and negative views: memory that stands for other numbers than the bits in it.

``torch.conj(x)`` and ``torch.conj(x).imag`` copy nothing. They mark the tensor, and torch's
operations compute with the conjugates, or the negated numbers, of what the memory holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import FEW, assert_bits, integers

pytestmark = pytest.mark.beyond("gloo", "takes the memory as it is")

CPU = torch.device("cpu")
View = Callable[[torch.Tensor], torch.Tensor]


def conjugate(values: torch.Tensor) -> torch.Tensor:
    return values.conj().clone().conj()


def negative(values: torch.Tensor) -> torch.Tensor:
    """Contiguous."""
    return torch._neg_view(values.neg())


def imaginary(values: torch.Tensor) -> torch.Tensor:
    """As users get one, with gaps."""
    return torch.complex(torch.zeros_like(values), values.neg()).conj().imag


def views() -> list[tuple[View, torch.dtype]]:
    return [
        (conjugate, torch.complex64),
        (lambda values: conjugate(values.T.contiguous()).T, torch.complex128),
        (negative, torch.float32),
        (negative, torch.complex64),
        (negative, torch.int32),
        (imaginary, torch.float64),
        (lambda values: negative(conjugate(values)), torch.complex64),
    ]


def numbers(rank: int, dtype: torch.dtype, salt: int = 0, rows: int = 4) -> torch.Tensor:
    """Sums of them are exact, and none is its own conjugate or negation."""
    return integers(rank, (rows, 6), dtype, salt) + (3 + 2j if dtype.is_complex else 3)


def test_the_views_are_views() -> None:
    for make, dtype in views():
        values = numbers(1, dtype)
        view = make(values)
        assert view.is_conj() or view.is_neg()
        assert torch.equal(view, values)


class Caller:
    """The calls of c10d's backend, which ``torch.distributed`` lets complex views not come to."""

    def __init__(self, make: View, dtype: torch.dtype) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.group: Any = dist.group.WORLD
        self.make, self.dtype = make, dtype

    def mine(self, salt: int = 0, rows: int = 4) -> torch.Tensor:
        return self.make(numbers(self.rank, self.dtype, salt, rows))

    def blank(self, rows: int = 4) -> torch.Tensor:
        return self.make(torch.full((rows, 6), 7, dtype=self.dtype))

    def sum(self, salt: int = 0, rows: int = 4) -> torch.Tensor:
        return sum(numbers(rank, self.dtype, salt, rows) for rank in range(self.ranks))

    def all(self, salt: int = 0) -> list[torch.Tensor]:
        return [numbers(rank, self.dtype, salt) for rank in range(self.ranks)]

    def check(self, result: torch.Tensor, expected: torch.Tensor) -> None:
        assert_bits(result.resolve_conj().resolve_neg(), expected, (self.dtype, result))

    def all_reduce(self) -> None:
        tensor = self.mine()
        self.group.allreduce([tensor]).wait()
        self.check(tensor, self.sum())

    def all_reduce_of_several(self) -> None:
        tensors = [self.mine(), self.mine(1)]
        self.group.allreduce(tensors).wait()
        for tensor in tensors:
            self.check(tensor, self.sum() + self.sum(1))

    def all_reduce_coalesced(self) -> None:
        tensors = [self.mine(), self.mine(1, rows=5)]
        self.group.allreduce_coalesced(tensors).wait()
        self.check(tensors[0], self.sum())
        self.check(tensors[1], self.sum(1, rows=5))

    def coalesced(self) -> None:
        tensor, gathered = self.mine(), self.blank(4 * self.ranks)
        self.group._start_coalescing(CPU)
        self.group.allreduce([tensor])
        self.group._allgather_base(gathered, self.mine(2))
        self.group._end_coalescing(CPU).wait()
        self.check(tensor, self.sum())
        self.check(gathered, torch.cat(self.all(2)))

    def premultiplied(self) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(2.0)
        tensor = self.mine()
        self.group.allreduce([tensor], options).wait()
        self.check(tensor, self.sum() * 2)

    def reduce(self) -> None:
        tensor, options = self.mine(), dist.ReduceOptions()
        options.rootRank = 1
        self.group.reduce([tensor], options).wait()
        self.check(tensor, self.sum() if self.rank == 1 else numbers(self.rank, self.dtype))

    def broadcast(self) -> None:
        tensors, options = [self.mine(), self.blank()], dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        self.group.broadcast(tensors, options).wait()
        for tensor in tensors:
            self.check(tensor, numbers(1, self.dtype))

    def all_gather(self) -> None:
        outputs = [self.blank() for _ in range(self.ranks)]
        self.group.allgather([outputs], [self.mine()]).wait()
        for output, expected in zip(outputs, self.all(), strict=True):
            self.check(output, expected)

    def all_gather_tensors(self) -> None:
        whole, others = self.blank(4 * self.ranks), [self.blank() for _ in range(self.ranks)]
        self.group._allgather_base(whole, self.mine()).wait()
        self.check(whole, torch.cat(self.all()))
        self.group.allgather_coalesced([[other] for other in others], [self.mine()]).wait()
        for output, expected in zip(others, self.all(), strict=True):
            self.check(output, expected)
        many = [self.blank(4 * self.ranks), self.blank(4 * self.ranks)]
        self.group.allgather_into_tensor_coalesced(many, [self.mine(), self.mine(1)]).wait()
        for salt, output in enumerate(many):
            self.check(output, torch.cat(self.all(salt)))

    def gather(self) -> None:
        options = dist.GatherOptions()
        options.rootRank = 1
        outputs = [self.blank() for _ in range(self.ranks)] if self.rank == 1 else []
        self.group.gather([outputs] if outputs else [], [self.mine()], options).wait()
        for output, expected in zip(outputs, self.all(), strict=False):
            self.check(output, expected)

    def scatter(self) -> None:
        options = dist.ScatterOptions()
        options.rootRank = 1
        inputs = [[self.make(each) for each in self.all()]] if self.rank == 1 else []
        output = self.blank()
        self.group.scatter([output], inputs, options).wait()
        self.check(output, self.all()[self.rank])

    def reduce_scatter(self) -> None:
        output = self.blank()
        self.group.reduce_scatter([output], [[self.mine(to) for to in range(self.ranks)]]).wait()
        self.check(output, self.sum(self.rank))

    def reduce_scatter_tensors(self) -> None:
        def rows(of: torch.Tensor) -> torch.Tensor:
            return of[4 * self.rank : 4 * (self.rank + 1)]

        output, total = self.blank(), rows(self.sum(rows=4 * self.ranks))
        self.group._reduce_scatter_base(output, self.mine(rows=4 * self.ranks)).wait()
        self.check(output, total)
        outputs, inputs = [self.blank()], [self.mine(rows=4 * self.ranks)]
        self.group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
        self.check(outputs[0], total)

    def all_to_all(self) -> None:
        outputs = [self.blank() for _ in range(self.ranks)]
        self.group.alltoall(outputs, [self.mine(to) for to in range(self.ranks)]).wait()
        for output, expected in zip(outputs, self.all(self.rank), strict=True):
            self.check(output, expected)
        whole = self.blank(4 * self.ranks)
        self.group.alltoall_base(whole, self.mine(rows=4 * self.ranks), [], []).wait()
        sent = [numbers(r, self.dtype, rows=4 * self.ranks) for r in range(self.ranks)]
        own = slice(4 * self.rank, 4 * self.rank + 4)
        self.check(whole, torch.cat([each[own] for each in sent]))

    def send_and_receive(self) -> None:
        output, left = self.blank(), (self.rank - 1) % self.ranks
        work = self.group.send([self.mine()], (self.rank + 1) % self.ranks, 0)
        self.group.recv([output], left, 0).wait()
        work.wait()
        self.check(output, numbers(left, self.dtype))
        output = self.blank()
        work = self.group.send([self.mine(1)], (self.rank + 1) % self.ranks, 1)
        self.group.recv_anysource([output], 1).wait()
        work.wait()
        self.check(output, numbers(left, self.dtype, 1))


CALLS = [name for name, call in vars(Caller).items() if callable(call) and name[0] != "_"]
CALLS = [name for name in CALLS if name not in ("mine", "blank", "sum", "all", "check")]


@pytest.mark.ranks(*FEW)
def test_every_call_reads_and_writes_what_a_view_stands_for() -> None:
    for make, dtype in views():
        caller = Caller(make, dtype)
        for call in CALLS:
            getattr(caller, call)()


@pytest.mark.ranks(2)
def test_codecs_read_and_write_what_a_view_stands_for(world_size: int) -> None:
    me = dist.get_rank()
    for codec in ("none", "fp32", "bf16", "sumint8", "blocks"):
        for make in (negative, imaginary):
            caller = Caller(make, torch.float32)
            tensor = caller.mine()
            q7x2.all_reduce(tensor, codec=codec)
            torch.testing.assert_close(tensor + 0, caller.sum(), rtol=0.02, atol=0.02)
            if codec == "blocks":
                continue
            output = caller.blank()
            q7x2.reduce_scatter_tensor(output, caller.mine(rows=4 * world_size), codec=codec)
            total = caller.sum(rows=4 * world_size)[4 * me : 4 * me + 4]
            torch.testing.assert_close(output + 0, total, rtol=0.02, atol=0.02)
            if codec != "sumint8":
                whole = caller.blank(4 * world_size)
                q7x2.all_gather_into_tensor(whole, caller.mine(), codec=codec)
                expected = torch.cat(caller.all())
                torch.testing.assert_close(whole + 0, expected, rtol=0.02, atol=0.02)


@pytest.mark.ranks(2)
def test_a_residual_that_is_a_view_is_refused() -> None:
    residual = negative(torch.zeros(4, 6))
    for codec in ("int8", "sumint8"):
        with pytest.raises(RuntimeError, match=r"residual 0: expected .* no negative view"):
            q7x2.all_reduce(torch.ones(4, 6), codec=codec, residual=residual)


@pytest.mark.ranks(2)
def test_a_sparse_sum_of_views() -> None:
    values = numbers(dist.get_rank(), torch.complex64)
    for make in (conjugate, negative):
        tensor = torch.sparse_coo_tensor([[0, 1, 5, 6]], make(values), (7, 6))
        dist.group.WORLD.allreduce([tensor]).wait()
        expected = numbers(0, torch.complex64) + numbers(1, torch.complex64)
        assert_bits(tensor.to_dense()[[0, 1, 5, 6]].resolve_conj().resolve_neg(), expected)


@pytest.mark.ranks(2)
def test_other_backends_get_copies_of_views() -> None:
    """Gloo reads the memory as it is; what a view stands for is another number."""
    other = dist.new_group(backend="gloo")
    assert other is not None
    values = negative(numbers(dist.get_rank(), torch.float32))
    parts = [torch.zeros(values.shape) for _ in range(2)]
    dist.all_gather(parts, values, group=other)
    for rank, part in enumerate(parts):
        assert_bits(part, negative(numbers(rank, torch.float32)).resolve_neg())
