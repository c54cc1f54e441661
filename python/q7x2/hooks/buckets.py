"""The buckets of a plain module: which gradients travel together, and the memory they travel in.

The rules are those of DistributedDataParallel, so both have the same buckets. In the first step all
gradients of one type are one bucket. Then the gradients are put into buckets in the order in which
the first backward computed them, so that a bucket fills up early. The first bucket is small,
because nothing else is on the network before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

FIRST_BYTES = 1 << 20


class Bucket:
    """Gradients of one dtype on one device, one after the other.

    Args:
        numbers: The numbers of its parameters.
        parameters: The parameters themselves.

    Attributes:
        numbers: The numbers of its parameters.
        buffer: The gradients; contiguous, of one dimension.
        missing: Numbers of parameters whose gradient the present backward has not computed yet.
        is_launched: The hook has it.
    """

    def __init__(self, numbers: list[int], parameters: Sequence[torch.Tensor]) -> None:
        self.numbers = numbers
        self.reset()
        self._parameters = list(parameters)
        first = self._parameters[0]
        sizes = [p.numel() for p in self._parameters]
        self.buffer = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self._views = [
            part.view(p.shape)
            for part, p in zip(torch.split(self.buffer, sizes), self._parameters, strict=True)
        ]

    def reset(self) -> None:
        """Wait for the gradients of another backward."""
        self.missing = set(self.numbers)
        self.is_launched = False

    @torch.no_grad()
    def fill(self, is_joined: bool = False) -> None:
        """Copy the gradients into the buffer; zeros where there are none, or for a joined rank."""
        given, views = [], []
        for p, view in zip(self._parameters, self._views, strict=True):
            if p.grad is None or is_joined:
                view.zero_()
                continue
            if p.grad.layout is not torch.strided:
                raise TypeError(
                    f"a gradient of shape {list(p.shape)} is sparse: expected dense ones, as "
                    "torch.nn.Embedding has with sparse=False"
                )
            given.append(p.grad)
            views.append(view)
        if given:
            torch._foreach_copy_(views, given)

    @torch.no_grad()
    def land(self) -> None:
        """Copy the means to the gradients that exist."""
        pairs = [
            (p.grad, view)
            for p, view in zip(self._parameters, self._views, strict=True)
            if p.grad is not None
        ]
        if pairs:
            gradients, views = zip(*pairs, strict=True)
            torch._foreach_copy_(list(gradients), list(views))

    @torch.no_grad()
    def create(self, used: Sequence[bool]) -> None:
        """Make the gradients of parameters that only other ranks have used.

        Args:
            used: By parameter number: some rank has a gradient of it.
        """
        for number, p, view in zip(self.numbers, self._parameters, self._views, strict=True):
            if p.grad is None and used[number]:
                p.grad = view.clone()


def assign(
    order: Iterable[int], parameters: Sequence[torch.Tensor], limits: Sequence[int]
) -> list[list[int]]:
    """Put parameters into buckets.

    Args:
        order: Their numbers.
        parameters: All parameters. Those of one bucket have the same dtype and device.
        limits: The number of bytes with which a bucket is full. The first limit is that of the
            first bucket of each kind, and so on; the last one is that of all further buckets.

    Returns:
        The numbers of each bucket, in the order in which buckets become full.
    """
    full: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    closed: dict[tuple[torch.dtype, torch.device], int] = {}
    for number in order:
        p = parameters[number]
        kind = (p.dtype, p.device)
        numbers, size = filling.pop(kind, ([], 0))
        numbers.append(number)
        size += p.numel() * p.element_size()
        count = closed.get(kind, 0)
        if size >= limits[min(count, len(limits) - 1)]:
            closed[kind] = count + 1
            full.append(numbers)
        else:
            filling[kind] = (numbers, size)
    return full + [numbers for numbers, _ in filling.values()]
