"""The tensors of ``random_calls``, and what must come of them.

Results are views of larger buffers, so a byte that is written beside them is seen as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
}


def numbers(source: int, destination: int, count: int, dtype: torch.dtype) -> Tensor:
    """What ``source`` gives to ``destination``: small whole numbers, whose folds are exact."""
    values = (torch.arange(count) * 3 + source * 5 + destination * 7) % 4
    return (values % 2 if dtype is torch.bool else values).to(dtype)


class Buffers:
    """The tensors of one call, and what lies beside them."""

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self.bases: list[tuple[Tensor, Tensor]] = []  # (all of it, the view that may be written)

    def make(self, count: int, dtype: torch.dtype) -> Tensor:
        spare = 5
        if self.layout == "strided":
            base = torch.ones(2 * count + spare, dtype=dtype)
            view = base[1 : 1 + 2 * count : 2]
        elif self.layout == "column":
            base = torch.ones((count, 3), dtype=dtype)
            view = base[:, 1]
        else:
            before = 3 if self.layout == "offset" else 0
            base = torch.ones(before + count + spare, dtype=dtype)
            view = base[before : before + count]
        self.bases.append((base, view))
        return view

    def give(self, values: Tensor) -> Tensor:
        return self.make(values.numel(), values.dtype).copy_(values)

    def freeze(self, results: Sequence[Tensor]) -> Callable[[], bool]:
        """Says later whether anything but ``results`` has changed."""
        changing = [any(view is result for result in results) for _, view in self.bases]
        before = [base.clone() for base, _ in self.bases]

        def intact() -> bool:
            for (base, view), was, may_change in zip(self.bases, before, changing, strict=True):
                now = base.clone()
                if may_change:
                    offset, stride = view.storage_offset(), view.stride()
                    now.as_strided(view.shape, stride, offset).fill_(1)
                    was.as_strided(view.shape, stride, offset).fill_(1)
                if not torch.equal(now, was):
                    return False
            return True

        return intact


def fold(op: str, parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = FOLDS[op](total, part)
    return total
