"""A reduce-scatter through a codec: one call over q7x2, an all-to-all of messages elsewhere.

    rank 0: row 0, row 1, row 2         encode row r for rank r, with this rank's residual
    rank 1: row 0, row 1, row 2         all-to-all
    rank 2: row 0, row 1, row 2         rank r: its own row r, exactly, + the decoded ones

A rank adds in float32 and in the order of ranks. Its own row is not encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._core.backends import unwrapped_backend
from q7x2._core.extension import load
from q7x2._core.random_keys import key_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class Sum:
    """A reduce-scatter under way.

    Attributes:
        works: Its collectives.
        result: This rank's part of the sum, once they are complete.
        sent_bytes: By this rank.
    """

    works: list[Any]
    result: Callable[[], torch.Tensor]
    sent_bytes: int

    def is_done(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self) -> torch.Tensor:
        for work in self.works:
            work.wait()
        return self.result()


class CodedReduceScatter:
    """Sums rows of floats over the ranks of a process group.

    Args:
        device: Where the tensors of the group's collectives must be.
        edges: Between which ranks messages are compressed; of q7x2's groups.
    """

    def __init__(
        self, group: ProcessGroup, device: torch.device, codec: str, edges: str, seed: int
    ) -> None:
        self._group, self._device = group, device
        self._codec = load().Codec(codec)
        self._edges, self._seed = edges, seed
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._backend: Any = unwrapped_backend(group, device)
        self.on_q7x2 = self._backend.name() == "q7x2"

    def start(
        self,
        rows: torch.Tensor,
        residual: torch.Tensor | None,
        step: int,
        index: int,
        is_exact: bool,
    ) -> Sum:
        """Begins a sum.

        Args:
            rows: One per rank, contiguous, float32 on the CPU; they belong to the sum until it is
                finished.
            residual: As many elements: is added, and holds afterwards what was not sent.
            step: Random numbers go by it, and by ``index``, which is that of the param group.
            is_exact: Nothing is rounded.
        """
        if self.on_q7x2:
            return self._start_call(rows, residual, step, index, is_exact)
        if is_exact:
            return self._start_exact(rows, residual)
        return self._start_messages(rows, residual, step, index)

    def _start_call(
        self,
        rows: torch.Tensor,
        residual: torch.Tensor | None,
        step: int,
        index: int,
        is_exact: bool,
    ) -> Sum:
        own = torch.empty(rows.shape[1])
        options = load().CodedOptions(
            "fp32" if is_exact else self._codec.name,
            op=dist.ReduceOp.SUM,
            residuals=[] if residual is None else [residual],
            seed=key_of(self._seed, index),
            step=step,
            edges=self._edges,
        )
        work = self._backend.coded_reduce_scatter([own], [rows], options)
        count = rows.shape[1]
        size = 4 * count if is_exact else self._codec.max_bytes(count)
        return Sum([work], lambda: own, (self._world_size - 1) * size)

    def _start_exact(self, rows: torch.Tensor, residual: torch.Tensor | None) -> Sum:
        if residual is not None:
            rows += residual
            residual.zero_()
        return self._exchange(rows, lambda received, own: own.add_(received))

    def _start_messages(
        self, rows: torch.Tensor, residual: torch.Tensor | None, step: int, index: int
    ) -> Sum:
        count = rows.shape[1]
        length = self._codec.max_bytes(count)
        key = key_of(self._seed, index, step)
        messages = torch.zeros(self._world_size, length, dtype=torch.uint8)
        for rank in range(self._world_size):
            if rank != self._rank:
                self._codec.encode(
                    rows[rank],
                    messages[rank],
                    None if residual is None else residual[rank],
                    block=count,
                    shared_key=key,
                    rounding_key=key_of(key, self._rank),
                )
        own = rows[self._rank]
        if residual is not None:
            # As a codec does: what is not finite leaves the residual as it was.
            is_finite = own.isfinite()
            own = own + residual[self._rank]
            residual[self._rank].masked_fill_(is_finite, 0)

        def add(message: torch.Tensor, total: torch.Tensor) -> None:
            self._codec.decode(message, [length], total, add=True, block=count, shared_key=key)

        return self._exchange(messages, add, own)

    def _exchange(
        self,
        rows: torch.Tensor,
        add: Callable[[torch.Tensor, torch.Tensor], Any],
        own: torch.Tensor | None = None,
    ) -> Sum:
        """All-to-all of rows, each of which ``add`` adds to the total of the rank it is for."""
        sent = rows.to(self._device)
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        mine = rows[self._rank] if own is None else own

        def result() -> torch.Tensor:
            total = torch.zeros(mine.shape)
            for rank, row in enumerate(received.cpu()):
                if rank == self._rank:
                    total += mine
                else:
                    add(row, total)
            return total

        return Sum([work], result, (self._world_size - 1) * rows[0].nbytes)
