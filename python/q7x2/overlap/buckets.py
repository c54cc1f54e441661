"""The buckets of DDP, and the chunks that each is cut into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup

from q7x2.overlap.chunk import Chunk
from q7x2.overlap.layout import Member, chunks_of
from q7x2.overlap.order import SliceLengths


class Buckets:
    """Cuts a bucket when it comes for the first time.

    Args:
        names: Those of the parameters.
        optimizer: The user's.
        elementwise: See :class:`Chunk`.
        groups: For reduce-scatters, and for all-gathers.
        slices: Slices of all-reduces over the first group.
    """

    def __init__(
        self,
        names: Mapping[nn.Parameter, str],
        optimizer: torch.optim.Optimizer,
        elementwise: frozenset[str],
        groups: tuple[ProcessGroup, ProcessGroup],
        slices: SliceLengths,
    ) -> None:
        self._names, self._optimizer, self._elementwise = names, optimizer, elementwise
        self._groups, self._slices = groups, slices
        self._group_of = {
            p: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        self._buckets: list[tuple[Sequence[Tensor], list[Chunk]]] = []

    @property
    def chunks(self) -> list[Chunk]:
        """Those of all buckets, in the order of backward."""
        return [chunk for _, chunks in self._buckets for chunk in chunks]

    def of(self, bucket: GradBucket, chunk_bytes: int) -> list[Chunk]:
        """The chunks of a bucket.

        Raises RuntimeError if the bucket of this index had other parameters before.
        """
        parameters: Sequence[Any] = bucket.parameters()
        if bucket.index() < len(self._buckets):
            known, chunks = self._buckets[bucket.index()]
            if [id(p) for p in known] != [id(p) for p in parameters]:
                raise RuntimeError(
                    "DistributedDataParallel has other buckets than in the last step; "
                    "forward overlap needs the same ones from step to step"
                )
            return chunks
        buffer = bucket.buffer()
        members = [
            Member(int(g.storage_offset() - buffer.storage_offset()), p.numel(), self._group_of[p])
            for p, g in zip(parameters, bucket.gradients(), strict=True)
        ]
        named = [(self._names[p], p) for p in parameters]
        most = max(1, chunk_bytes // buffer.element_size())
        slice_length = self._slices.of(buffer.numel(), buffer.dtype)
        cuts = chunks_of(buffer.numel(), self._groups[0].size(), most, slice_length)
        chunks = [
            Chunk(named, members, runs, self._optimizer, self._elementwise, self._groups)
            for runs in cuts
        ]
        self._buckets.append((parameters, chunks))
        return chunks

    def clear(self) -> None:
        """Forget all buckets."""
        self._buckets.clear()
