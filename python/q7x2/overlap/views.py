"""Views that are kept from step to step: making one takes longer than a short copy."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

_dtype_of = attrgetter("dtype")

Part = tuple[Tensor, int, int]
"""A tensor, the first element of a part of it, and the number of elements."""


class KeptViews:
    """Flat views of parts of tensors. They are made anew when a tensor has other memory.

    A parameter gets other memory by ``p.data = ...`` or ``module.to(...)``, for example. If memory
    moves inside its storage, as with ``share_memory_()``, the views follow by themselves.

    Args:
        parts: One for each view. The tensors are contiguous.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._tensors = list({id(tensor): tensor for tensor, _, _ in parts}.values())
        self._known: list[Tensor] = []  # by tensor: its memory when the views were made
        self._types: list[torch.dtype] = []
        self._views: list[Tensor] = []

    def get(self) -> list[Tensor]:
        """The views of the memory that the tensors have now.

        Raises RuntimeError if a tensor is not contiguous any more.
        """
        if not self._known or not self._are_the_same():
            self._make()
        return self._views

    def _are_the_same(self) -> bool:
        """Whether all tensors are what they were: elements of a storage, of a type."""
        types = list(map(_dtype_of, self._tensors))
        return types == self._types and all(map(Tensor.is_set_to, self._tensors, self._known))

    def _make(self) -> None:
        # Views that are made while a user infers could not be changed when he trains.
        with torch.inference_mode(False):
            known = [tensor.detach() for tensor in self._tensors]
            flat = {id(t): each.view(-1) for t, each in zip(self._tensors, known, strict=True)}
            self._views = views_of([(flat[id(t)], at, length) for t, at, length in self._parts])
            self._known, self._types = known, list(map(_dtype_of, known))


def views_of(parts: Sequence[Part]) -> list[Tensor]:
    """A view of each part of flat tensors."""
    return [tensor[at : at + length] for tensor, at, length in parts]


def copy_all(to: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its place; one call, because most of them are short."""
    if to:
        torch._foreach_copy_(to, sources)
