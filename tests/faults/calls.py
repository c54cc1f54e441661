"""The calls of a faulty run: each makes its own input, and knows its own result.

All values are small whole numbers, so every sum of them is exact in float32 in any order, and a
result is right or wrong to the bit. Each round has other values: a result that is left over from an
earlier round is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import q7x2
import torch
import torch.distributed as dist

_PERIOD = 61  # of the values along a tensor; a prime, so that no slice begins alike
_ROUNDS = 17


class WrongResult(AssertionError):
    """A call succeeded with a wrong result, or changed its input."""


def values(rank: int, round_: int, count: int, offset: int = 0) -> torch.Tensor:
    """What `rank` contributes in a round; elements `offset` to `offset + count`."""
    positions = torch.arange(offset, offset + count, dtype=torch.float32)
    return positions.remainder_(_PERIOD).add_(rank + round_ % _ROUNDS)


def summed(world: int, round_: int, count: int, offset: int = 0) -> torch.Tensor:
    """The sum of all ranks' values."""
    total = values(0, round_, count, offset).mul_(world)
    return total.add_(world * (world - 1) // 2)


def check(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    if torch.equal(got, expected):
        return
    bad = torch.nonzero(got != expected).flatten()
    first = int(bad[0])
    raise WrongResult(
        f"{what}: {len(bad)} of {got.numel()} elements are wrong; element {first} is "
        f"{got[first].item()}, expected {expected[first].item()}"
    )


class Caller:
    """Makes calls on one group, round by round, and checks what they return."""

    def __init__(self, group: dist.ProcessGroup | None = None, async_op: bool = False) -> None:
        self.group = group
        self.async_op = async_op
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def __call__(self, op: str, round_: int, count: int) -> None:
        """Raises WrongResult, or whatever the call raises."""
        CALLS[op](self, round_, count)

    def global_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def finish(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        work = call(*args, group=self.group, async_op=self.async_op, **kwargs)
        if work is not None:
            work.wait()

    def all_reduce(self, round_: int, count: int) -> None:
        tensor = values(self.rank, round_, count)
        self.finish(dist.all_reduce, tensor)
        check("all_reduce", tensor, summed(self.world, round_, count))

    def reduce_scatter(self, round_: int, count: int) -> None:
        piece = -(-count // self.world)
        given = values(self.rank, round_, piece * self.world)
        before = given.clone()
        result = torch.empty(piece)
        self.finish(dist.reduce_scatter_tensor, result, given)
        check("reduce_scatter", result, summed(self.world, round_, piece, self.rank * piece))
        check("input of reduce_scatter", given, before)

    def all_gather(self, round_: int, count: int) -> None:
        piece = -(-count // self.world)
        given = values(self.rank, round_, piece)
        before = given.clone()
        result = torch.empty(piece * self.world)
        self.finish(dist.all_gather_into_tensor, result, given)
        expected = torch.cat([values(r, round_, piece) for r in range(self.world)])
        check("all_gather", result, expected)
        check("input of all_gather", given, before)

    def all_to_all(self, round_: int, count: int) -> None:
        piece = -(-count // self.world)
        given = values(self.rank, round_, piece * self.world)
        before = given.clone()
        result = torch.empty(piece * self.world)
        self.finish(dist.all_to_all_single, result, given)
        mine = [values(r, round_, piece, self.rank * piece) for r in range(self.world)]
        check("all_to_all", result, torch.cat(mine))
        check("input of all_to_all", given, before)

    def broadcast(self, round_: int, count: int) -> None:
        root = round_ % self.world
        tensor = values(self.rank, round_, count)
        self.finish(dist.broadcast, tensor, self.global_rank(root))
        check("broadcast", tensor, values(root, round_, count))

    def reduce(self, round_: int, count: int) -> None:
        root = round_ % self.world
        tensor = values(self.rank, round_, count)
        self.finish(dist.reduce, tensor, self.global_rank(root))
        if root == self.rank:
            check("reduce", tensor, summed(self.world, round_, count))
        else:
            check("input of reduce", tensor, values(self.rank, round_, count))

    def barrier(self, round_: int, count: int) -> None:
        dist.barrier(group=self.group)

    def exchange(self, round_: int, count: int) -> None:
        """Each rank sends to the next one and receives from the one before."""
        after = self.global_rank((self.rank + 1) % self.world)
        before = (self.rank - 1) % self.world
        given = values(self.rank, round_, count)
        kept = given.clone()
        result = torch.empty(count)
        sent = dist.isend(given, after, group=self.group)
        received = dist.irecv(result, self.global_rank(before), group=self.group)
        assert sent is not None
        assert received is not None
        received.wait()
        sent.wait()
        check("recv", result, values(before, round_, count))
        check("input of send", given, kept)

    def coalesced(self, round_: int, count: int) -> None:
        """Four all-reduces at once, waited for in the reverse order."""
        tensors = [values(self.rank, round_ + i, count) for i in range(4)]
        works = [dist.all_reduce(t, group=self.group, async_op=True) for t in tensors]
        for work in reversed(works):
            assert work is not None
            work.wait()
        for i, tensor in enumerate(tensors):
            check("all_reduce", tensor, summed(self.world, round_ + i, count))

    def coded(self, round_: int, count: int) -> None:
        """Compressed to eight bits: the error is below two steps of a block's range per rank."""
        tensor = values(self.rank, round_, count)
        q7x2.all_reduce(tensor, codec="int8", group=self.group)
        expected = summed(self.world, round_, count)
        bound = 2.0 * self.world * float(expected.max()) / 127
        worst = float((tensor - expected).abs().max())
        if not worst <= bound:
            raise WrongResult(f"all_reduce with int8: off by {worst}, at most {bound}")

    def blocks(self, round_: int, count: int) -> None:
        """Each rank has every third block; the others are zero, and are not sent."""
        tensor = self._thirds(self.rank, round_, count)
        q7x2.all_reduce(tensor, codec="blocks", group=self.group)
        check("all_reduce of blocks", tensor, self._sum_of_thirds(round_, count))

    def rows(self, round_: int, count: int) -> None:
        """The same as a sparse tensor."""
        tensor = self._thirds(self.rank, round_, count).to_sparse()
        dist.all_reduce(tensor, group=self.group)
        check("all_reduce of rows", tensor.to_dense(), self._sum_of_thirds(round_, count))

    def _thirds(self, rank: int, round_: int, count: int) -> torch.Tensor:
        tensor = values(rank, round_, count)
        block = torch.arange(count).div_(256, rounding_mode="floor")
        tensor[(block + rank + round_) % 3 != 0] = 0
        return tensor

    def _sum_of_thirds(self, round_: int, count: int) -> torch.Tensor:
        total = torch.zeros(count)
        for rank in range(self.world):
            total += self._thirds(rank, round_, count)
        return total


CALLS: dict[str, Callable[[Caller, int, int], None]] = {
    "all_reduce": Caller.all_reduce,
    "reduce_scatter": Caller.reduce_scatter,
    "all_gather": Caller.all_gather,
    "all_to_all": Caller.all_to_all,
    "broadcast": Caller.broadcast,
    "reduce": Caller.reduce,
    "barrier": Caller.barrier,
    "exchange": Caller.exchange,
    "coalesced": Caller.coalesced,
    "coded": Caller.coded,
    "blocks": Caller.blocks,
    "rows": Caller.rows,
}
