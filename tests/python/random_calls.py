"""Makes the calls of ``random_cases`` on a rank, and knows their results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from random_cases import Arguments
from random_tensors import Buffers, fold, numbers
from torch import Tensor

CPU = torch.device("cpu")
# Relative to the largest element; those of other codecs may be anything finite.
CODEC_ERRORS = {"fp32": 0.0, "bf16": 0.0, "int8": 0.05, "blocks": 0.0}


@dataclasses.dataclass
class Call:
    """One rank's call, and what it must come to if the ranks agree."""

    run: Callable[[], Any]
    results: list[Tensor]
    expected: list[Tensor]
    error: float = 0.0  # allowed, relative to the largest; infinite: anything finite

    def is_right(self) -> bool:
        for result, expected in zip(self.results, self.expected, strict=True):
            if self.error == 0:
                if not torch.equal(result, expected):
                    return False
            elif expected.numel() > 0:
                worst = (result.double() - expected.double()).abs().max().item()
                if not worst <= self.error * expected.double().abs().max().item() + 1e-6:
                    return False
        return True


class Caller:
    """Makes one rank's calls on one group."""

    def __init__(self, group: Any, rank: int, world: int) -> None:
        self.group = group
        self.rank = rank
        self.world = world

    def prepare(self, made: Arguments) -> tuple[Call, Buffers]:
        buffers = Buffers("dense" if made.aliased else made.layout)
        return getattr(self, f"_{made.kind}")(made, buffers), buffers

    def _ranks(self) -> range:
        return range(self.world)

    def _options(self, options: Any, made: Arguments) -> Any:
        if hasattr(options, "rootRank"):
            options.rootRank = made.root
        if hasattr(options, "reduceOp"):
            options.reduceOp = getattr(dist.ReduceOp, made.op)
        return options

    def _sum(self, made: Arguments, destination: int, count: int) -> Tensor:
        return fold(made.op, [numbers(r, destination, count, made.dtype) for r in self._ranks()])

    def _all_reduce(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        tensor = buffers.give(numbers(self.rank, 0, size, made.dtype))
        options = self._options(dist.AllreduceOptions(), made)
        return Call(
            lambda: self.group.allreduce([tensor], options),
            [tensor],
            [self._sum(made, 0, size)],
        )

    def _all_reduce_coalesced(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[0][0], made.counts[0][0] + 1]
        tensors = [
            buffers.give(numbers(self.rank, i, size, made.dtype)) for i, size in enumerate(sizes)
        ]
        options = self._options(dist.AllreduceCoalescedOptions(), made)
        return Call(
            lambda: self.group.allreduce_coalesced(tensors, options),
            tensors,
            [self._sum(made, i, size) for i, size in enumerate(sizes)],
        )

    def _reduce(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        tensor = buffers.give(numbers(self.rank, 0, size, made.dtype))
        options = self._options(dist.ReduceOptions(), made)
        is_root = made.root == self.rank
        return Call(
            lambda: self.group.reduce([tensor], options),
            [tensor] if is_root else [],
            [self._sum(made, 0, size)] if is_root else [],
        )

    def _broadcast(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        tensor = buffers.give(numbers(self.rank, 0, size, made.dtype))
        options = self._options(dist.BroadcastOptions(), made)
        options.rootTensor = 0
        return Call(
            lambda: self.group.broadcast([tensor], options),
            [] if made.root == self.rank else [tensor],
            [] if made.root == self.rank else [numbers(made.root, 0, size, made.dtype)],
        )

    def _all_gather(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[r][0] for r in self._ranks()]
        given = buffers.give(numbers(self.rank, 0, sizes[self.rank], made.dtype))
        sizes[self.rank] += made.own_excess
        dtype = made.dtype_out or made.dtype
        outputs = [buffers.make(size, dtype) for size in sizes]
        return Call(
            lambda: self.group.allgather([outputs[made.missing :]], [given]),
            outputs,
            [numbers(r, 0, sizes[r], made.dtype) for r in self._ranks()],
        )

    def _all_gather_tensor(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        output = buffers.make(size * self.world + made.own_excess, made.dtype_out or made.dtype)
        values = numbers(self.rank, 0, size, made.dtype)
        if made.aliased:
            # In its own place, or somewhere across two.
            begin = self.rank * size if size % 2 else (self.world - 1) * size // 2
            given = output[begin : begin + size].copy_(values)
        else:
            given = buffers.give(values)
        return Call(
            lambda: self.group._allgather_base(output, given),
            [output],
            [torch.cat([numbers(r, 0, size, made.dtype) for r in self._ranks()])],
        )

    def _all_gather_many(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[0][0], 3]
        dtypes = [made.dtype, torch.int32]
        given = [
            buffers.give(numbers(self.rank, i, size, dtype))
            for i, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))
        ]
        first = buffers.make(sizes[0] * self.world + made.own_excess, made.dtype_out or dtypes[0])
        outputs = [first, buffers.make(sizes[1] * self.world, dtypes[1])]
        return Call(
            lambda: self.group.allgather_into_tensor_coalesced(outputs, given),
            outputs,
            [
                torch.cat([numbers(r, i, sizes[i], dtypes[i]) for r in self._ranks()])
                for i in range(2)
            ],
        )

    def _all_gather_lists(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[0][0], 3]
        given = [
            buffers.give(numbers(self.rank, i, size, made.dtype)) for i, size in enumerate(sizes)
        ]
        outputs = [[buffers.make(size, made.dtype) for size in sizes] for _ in self._ranks()]
        return Call(
            lambda: self.group.allgather_coalesced(outputs, given),
            [output for one in outputs for output in one],
            [numbers(r, i, n, made.dtype) for r in self._ranks() for i, n in enumerate(sizes)],
        )

    def _coalescing(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        options = self._options(dist.AllreduceOptions(), made)
        tensor = buffers.give(numbers(self.rank, 0, size, made.dtype))
        pieces = buffers.give(numbers(self.rank, 1, 2 * self.world, made.dtype))
        output = buffers.make(2 * self.world, made.dtype)

        def run() -> None:
            self.group._start_coalescing(CPU)
            try:
                self.group.allreduce([tensor], options)
                self.group.alltoall_base(output, pieces, [], [])
            finally:
                work = self.group._end_coalescing(CPU)
            work.wait()

        sent = [numbers(r, 1, 2 * self.world, made.dtype) for r in self._ranks()]
        mine = slice(2 * self.rank, 2 * self.rank + 2)
        return Call(
            run, [tensor, output], [self._sum(made, 0, size), torch.cat([s[mine] for s in sent])]
        )

    def _gather(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[r][0] for r in self._ranks()]
        given = buffers.give(numbers(self.rank, 0, sizes[self.rank], made.dtype))
        is_root = made.root == self.rank
        dtype = made.dtype_out or made.dtype
        outputs = [buffers.make(size, dtype) for size in sizes] if is_root else []
        options = self._options(dist.GatherOptions(), made)
        return Call(
            lambda: self.group.gather(
                [outputs[made.missing :]] if is_root else [], [given], options
            ),
            outputs,
            [numbers(r, 0, sizes[r], made.dtype) for r in self._ranks()] if is_root else [],
        )

    def _scatter(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[r][0] for r in self._ranks()]
        output = buffers.make(sizes[self.rank], made.dtype_out or made.dtype)
        given = []
        if made.root == self.rank:
            given = [
                buffers.give(numbers(made.root, r, sizes[r], made.dtype)) for r in self._ranks()
            ]
        options = self._options(dist.ScatterOptions(), made)
        return Call(
            lambda: self.group.scatter([output], [given[made.missing :]] if given else [], options),
            [output],
            [numbers(made.root, self.rank, sizes[self.rank], made.dtype)],
        )

    def _reduce_scatter(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[r][0] for r in self._ranks()]
        given = [buffers.give(numbers(self.rank, r, sizes[r], made.dtype)) for r in self._ranks()]
        size = sizes[self.rank] + made.own_excess
        output = buffers.make(size, made.dtype_out or made.dtype)
        options = self._options(dist.ReduceScatterOptions(), made)
        return Call(
            lambda: self.group.reduce_scatter([output], [given[made.missing :]], options),
            [output],
            [self._sum(made, self.rank, size)],
        )

    def _reduce_scatter_tensor(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        values = [numbers(self.rank, r, size, made.dtype) for r in self._ranks()]
        given = buffers.give(torch.cat(values))
        if made.aliased:
            begin = self.rank * size if size % 2 else (self.world - 1) * size // 2
            output = given[begin : begin + size]
            buffers.bases.clear()
        else:
            output = buffers.make(size + made.own_excess, made.dtype_out or made.dtype)
        options = self._options(dist.ReduceScatterOptions(), made)
        return Call(
            lambda: self.group._reduce_scatter_base(output, given, options),
            [output],
            [self._sum(made, self.rank, size)],
        )

    def _reduce_scatter_many(self, made: Arguments, buffers: Buffers) -> Call:
        sizes = [made.counts[0][0], 2]
        given, outputs, expected = [], [], []
        for i, size in enumerate(sizes):
            parts = [numbers(self.rank, r + i, size, made.dtype) for r in self._ranks()]
            given.append(buffers.give(torch.cat(parts)))
            excess, dtype = (0, None) if i else (made.own_excess, made.dtype_out)
            outputs.append(buffers.make(size + excess, dtype or made.dtype))
            expected.append(self._sum(made, self.rank + i, size))
        options = self._options(dist.ReduceScatterOptions(), made)
        return Call(
            lambda: self.group.reduce_scatter_tensor_coalesced(outputs, given, options),
            outputs,
            expected,
        )

    def _all_to_all(self, made: Arguments, buffers: Buffers) -> Call:
        me = self.rank
        given = [buffers.give(numbers(me, r, n, made.dtype)) for r, n in enumerate(made.counts[me])]
        sizes = [made.counts[r][me] for r in self._ranks()]
        sizes[me] += made.own_excess
        outputs = [buffers.make(size, made.dtype_out or made.dtype) for size in sizes]
        return Call(
            lambda: self.group.alltoall(outputs[made.missing :], given),
            outputs,
            [numbers(r, me, sizes[r], made.dtype) for r in self._ranks()],
        )

    def _all_to_all_single(self, made: Arguments, buffers: Buffers) -> Call:
        me = self.rank
        given_sizes = [made.counts[me][r] for r in self._ranks()]
        sizes = [made.counts[r][me] for r in self._ranks()]
        sizes[me] += made.own_excess
        even = len({*given_sizes, *sizes}) == 1 and all(len(set(row)) == 1 for row in made.counts)
        width = made.width if buffers.layout in ("dense", "offset") else 1
        values = [numbers(me, r, width * n, made.dtype) for r, n in enumerate(given_sizes)]
        given = buffers.give(torch.cat(values))
        if made.aliased and len(set(map(len, values))) == 1 and sizes == given_sizes:
            output = given
        else:
            output = buffers.make(width * sum(sizes), made.dtype_out or made.dtype)
        rows_in, rows_out = given, output
        if width > 1:
            rows_in, rows_out = given.view(-1, width), output.view(-1, width)
        return Call(
            lambda: self.group.alltoall_base(
                rows_out, rows_in, [] if even else sizes, [] if even else given_sizes
            ),
            [output],
            [torch.cat([numbers(r, me, width * sizes[r], made.dtype) for r in self._ranks()])],
        )

    def _coded_all_reduce(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        tensor = buffers.give(numbers(self.rank, 0, size, made.dtype))
        return Call(
            lambda: q7x2.all_reduce(tensor, codec=made.codec, group=self.group, step=1),
            [tensor],
            [self._sum(made, 0, size)],
            CODEC_ERRORS.get(made.codec, math.inf),
        )

    def _coded_all_gather(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        given = buffers.give(numbers(self.rank, 0, size, made.dtype))
        output = buffers.make(size * self.world, made.dtype)
        return Call(
            lambda: q7x2.all_gather_into_tensor(
                output, given, codec=made.codec, group=self.group, step=1
            ),
            [output],
            [torch.cat([numbers(r, 0, size, made.dtype) for r in self._ranks()])],
            CODEC_ERRORS.get(made.codec, math.inf),
        )

    def _coded_reduce_scatter(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        parts = [numbers(self.rank, r, size, made.dtype) for r in self._ranks()]
        given = buffers.give(torch.cat(parts))
        output = buffers.make(size, made.dtype)
        return Call(
            lambda: q7x2.reduce_scatter_tensor(
                output, given, codec=made.codec, group=self.group, step=1
            ),
            [output],
            [self._sum(made, self.rank, size)],
            CODEC_ERRORS.get(made.codec, math.inf),
        )

    def _sparse(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0] % 5000
        tensor = numbers(self.rank, 0, size, made.dtype).to_sparse()
        dense = torch.empty(size, dtype=made.dtype)

        def run() -> None:
            self.group.allreduce([tensor]).wait()
            dense.copy_(tensor.to_dense())

        return Call(run, [dense], [self._sum(made, 0, size)])

    def _send(self, made: Arguments, buffers: Buffers) -> Call:
        size = made.counts[0][0]
        if self.rank > 1:
            return Call(lambda: None, [], [])
        if self.rank == 0:
            sent = buffers.give(numbers(0, 1, size, made.dtype))
            return Call(lambda: self.group.send([sent], 1, 3), [], [])
        output = buffers.make(size, made.dtype)
        return Call(
            lambda: self.group.recv([output], 0, 3), [output], [numbers(0, 1, size, made.dtype)]
        )
