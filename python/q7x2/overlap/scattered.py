"""The gradients between backward and the optimizer's step: each rank has the mean of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2.overlap.buckets import Buckets
from q7x2.overlap.chunk import Chunk
from q7x2.overlap.gradient import ScatteredGradient
from q7x2.overlap.record import Record


class ScatteredGradients:
    """Marks parameters whose gradients are scattered, and works on the shards.

    Args:
        parameters: All that DDP reduces.
        buckets: Have the shards.
        group: For sums over the ranks.
        record: Counts the seconds that shards are waited for.
        check: Raises if something may not change the gradients now; it is called with its name.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        buckets: Buckets,
        group: ProcessGroup,
        record: Record,
        check: Callable[[str], None],
    ) -> None:
        self._marks = {p: ScatteredGradient.of(p, self._unscale) for p in parameters}
        self._buckets, self._group, self._record, self._check = buckets, group, record, check

    def mark(self) -> None:
        """All gradients are scattered now."""
        for p, mark in self._marks.items():
            p.grad = mark

    def clear(self) -> None:
        """Drop the gradients that are scattered."""
        for p, mark in self._marks.items():
            if p.grad is mark:
                p.grad = None

    def are_scattered(self) -> bool:
        """Whether all of them are; False if there are none.

        Raises RuntimeError if some are scattered, and others are not.
        """
        if all(p.grad is None for p in self._marks):
            return False
        if any(p.grad is not mark for p, mark in self._marks.items()):
            raise RuntimeError(
                "some gradients have not been reduced: the last backward before a step must run "
                "outside of no_sync, and zero_grad must clear the gradients of all parameters"
            )
        return True

    def arrived(self) -> list[Chunk]:
        """All chunks, when this rank has its shards of them."""
        chunks = self._buckets.chunks
        with self._record.waiting("step_wait_seconds"):
            for chunk in chunks:
                chunk.wait()
        return chunks

    def clip(self, max_norm: float, norm_type: float) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_`` for scattered gradients; a collective call.

        Returns:
            The norm before clipping, a tensor of no dimensions, the same on all ranks.
        """
        shards = self._shards()
        norms = [torch.linalg.vector_norm(shard, norm_type).float() for shard in shards]
        norms.append(torch.zeros((), device=next(iter(self._marks)).device))
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        if norm_type == float("inf"):
            dist.all_reduce(total, dist.ReduceOp.MAX, group=self._group)
        else:
            total = total.pow(norm_type)
            dist.all_reduce(total, group=self._group)
            total = total.pow(1.0 / norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for shard in shards:
            shard.mul_(factor)
        return total

    def _unscale(self, found_inf: Tensor, inv_scale: Tensor) -> None:
        """What a ``GradScaler`` does."""
        self._check("GradScaler")
        if shards := self._shards():
            torch._amp_foreach_non_finite_check_and_unscale_(shards, found_inf, inv_scale)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=self._group)

    def _shards(self) -> list[Tensor]:
        # An empty tensor has no largest magnitude.
        return [chunk.gradient for chunk in self.arrived() if chunk.gradient.numel()]
