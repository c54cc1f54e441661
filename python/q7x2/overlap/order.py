"""In which order an all-reduce sums, so that a reduce-scatter can sum in the same one.

A ring starts the sum of part p at rank p + 1, in its all-reduce as in its reduce-scatter. But the
all-reduce cuts its data into slices, and each slice into parts. So rank p must own part p of every
slice. Algorithms that round once sum in the order of ranks, whatever the parts, and two ranks have
only one order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from q7x2._core.backends import is_on_q7x2


class SliceLengths:
    """The slices of all-reduces over ``group``, where they matter for the order of summation."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self._device = device
        self._group = group if is_on_q7x2(group, device) and group.size() > 2 else None

    def of(self, length: int, dtype: torch.dtype) -> int | None:
        """The number of elements of a slice if a ring sums ``length`` elements.

        None: it does not matter. The first call for a size is a collective call, unless all ranks
        have all-reduced as much over the group.
        """
        if self._group is None:
            return None
        size = length * dtype.itemsize
        choice = self._choice(size)
        if choice is None:  # the first call of a kind chooses
            zeros = torch.zeros(length, dtype=dtype, device=self._device)
            dist.all_reduce(zeros, group=self._group)
            choice = self._choice(size)
        if choice is None or choice[0] != "ring":
            return None
        return max(1, choice[1] // dtype.itemsize)

    def _choice(self, size: int) -> tuple[str, int] | None:
        """The algorithm and the bytes of a slice."""
        from q7x2.plan.history import plan_history

        size_class = 1 << max(size - 1, 0).bit_length()
        for kind in plan_history(self._group):
            if (kind["collective"], kind["bytes"], kind["codec"]) == ("all_reduce", size_class, ""):
                best = kind["candidates"][0]
                return best["algorithm"], best["slice_bytes"]
        return None
