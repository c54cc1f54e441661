"""Gradient codes: each part of a batch is computed by several ranks, so some may be missing.

Tandon et al., "Gradient Coding", 2017 (arXiv 1612.03301). With ``copies`` = r, each of n parts is
computed by r ranks, and any n - r + 1 ranks have the exact sum over all parts. If r divides n, r
ranks compute the same r parts (fractional repetition)::

    n = 4, r = 2      rank 0: parts 0 + 1     rank 2: parts 2 + 3
                      rank 1: parts 0 + 1     rank 3: parts 2 + 3      sum = (0 or 1) + (2 or 3)

Otherwise rank i sends a combination of parts i to i + r - 1 (cyclic repetition), and the sum is a
combination of what arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SEED = 0  # of the cyclic code's coefficients: the same on all ranks


@dataclass(frozen=True)
class Part:
    """A part of the batch that a rank computes.

    Attributes:
        index: Of the part, from 0 to the number of ranks.
        weight: What the loss of the part is multiplied by before its backward.
    """

    index: int
    weight: float


class Code:
    """A gradient code of ``world_size`` parts.

    Args:
        copies: Ranks that compute each part; 1: no redundancy.
    """

    def __init__(self, world_size: int, copies: int) -> None:
        self.world_size, self.copies = world_size, copies
        self._is_repetition = world_size % copies == 0
        self._matrix = self._repeated() if self._is_repetition else self._cyclic()

    def parts(self, rank: int) -> list[Part]:
        """What a rank computes."""
        row = self._matrix[rank]
        return [Part(int(index), float(row[index])) for index in row.nonzero().flatten()]

    def coefficients(self, mask: int) -> list[float] | None:
        """What to multiply the ranks' sums by, so that their sum is that of all parts, by rank.

        Args:
            mask: The ranks whose sums are there, one bit per rank.

        Returns:
            None if these ranks do not have all parts.
        """
        present = [rank for rank in range(self.world_size) if mask >> rank & 1]
        if self._is_repetition:
            first = {rank // self.copies: rank for rank in reversed(present)}
            if len(first) < self.world_size // self.copies:
                return None
            return [float(first[rank // self.copies] == rank) for rank in range(self.world_size)]
        if len(present) < self.world_size - self.copies + 1:
            return None
        ones = torch.ones(self.world_size, 1, dtype=torch.float64)
        solved = torch.linalg.lstsq(self._matrix[present].t(), ones, driver="gelsd").solution
        coefficients = torch.zeros(self.world_size, dtype=torch.float64)
        coefficients[present] = solved.flatten()
        return [float(each) for each in coefficients]

    def _repeated(self) -> Tensor:
        ranks = torch.arange(self.world_size) // self.copies
        return (ranks.unsqueeze(0) == ranks.unsqueeze(1)).double()

    def _cyclic(self) -> Tensor:
        """Algorithm 2 of the paper: rows in the null space of a matrix whose rows add up to 0."""
        n, missing = self.world_size, self.copies - 1
        generator = torch.Generator().manual_seed(_SEED)
        h = torch.randn(missing, n, generator=generator, dtype=torch.float64)
        h[:, -1] = -h[:, :-1].sum(1)
        matrix = torch.zeros(n, n, dtype=torch.float64)
        for rank in range(n):
            others = [(rank + each) % n for each in range(1, self.copies)]
            matrix[rank, rank] = 1
            matrix[rank, others] = -torch.linalg.solve(h[:, others], h[:, rank])
        return matrix
