"""Gradient codes: each part of a batch is computed by several ranks, so some may be missing.

Tandon et al., "Gradient Coding", 2017 (arXiv 1612.03301). With ``copies`` = r, each of n parts is
computed by r ranks, and any n - r + 1 ranks have the exact sum over all parts. If r divides n, r
ranks compute the same r parts (fractional repetition)::

    n = 4, r = 2      rank 0: parts 0 + 1     rank 2: parts 2 + 3
                      rank 1: parts 0 + 1     rank 3: parts 2 + 3      sum = (0 or 1) + (2 or 3)

Otherwise rank i sends a combination of parts i to i + r - 1 (cyclic repetition), and the sum is a
combination of what arrives. The coefficients of all ranks' combinations are orthogonal to the r - 1
highest harmonics of n points (as in Raviv et al., "Gradient Coding From Cyclic MDS Codes and
Expander Graphs", 2020, arXiv 1707.03858, but real)::

    n = 9, r = 3      harmonics  0   1, -1   2, -2   3, -3   4, -4
                                 `----- free ------'    `---'  orthogonal

Decoding subtracts combinations from each other, so rounding errors of the combinations grow. By
``amplification`` at most: it is largest if the present ranks are neighbours. With random
coefficients instead of harmonics it is up to 10,000 times as large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from q7x2._core.option_checks import check_whole

_MOST_AMPLIFICATION = 1e4  # factor of the rounding errors of float32, 6e-8


@dataclass(frozen=True)
class Part:
    """A part of the batch that a rank computes.

    Attributes:
        index: The part's index, from 0 to the number of ranks.
        weight: What the loss of the part is multiplied by before its backward.
    """

    index: int
    weight: float


class GradientCode:
    """A gradient code of ``world_size`` parts.

    Args:
        world_size: The number of ranks, which is also the number of parts.
        copies: The number of ranks that compute each part; 1 means no redundancy.

    Attributes:
        amplification: By how much decoding may amplify rounding errors of the ranks' sums, relative
            to the largest part.

    Raises:
        ValueError: A number is out of range, or decoding would amplify them more than 10,000 times.
    """

    def __init__(self, world_size: int, copies: int) -> None:
        check_whole("world_size", world_size, 1)
        check_whole("copies", copies, 1, world_size)
        self.world_size, self.copies = world_size, copies
        self._is_repetition = world_size % copies == 0
        self._matrix = self._repeated() if self._is_repetition else self._cyclic()
        self.amplification = 1.0 if self._is_repetition else self._largest_amplification()
        if self.amplification > _MOST_AMPLIFICATION:
            divisors = [r for r in range(1, world_size + 1) if world_size % r == 0]
            raise ValueError(
                f"copies={copies} of {world_size} ranks: decoding would amplify rounding errors "
                f"{self.amplification:.0e} times; a number of copies that divides the number of "
                f"ranks does not: one of {', '.join(map(str, divisors))}"
            )

    def parts(self, rank: int) -> list[Part]:
        """The parts that a rank computes, each with its coefficient in the rank's sum.

        Args:
            rank: From 0 to ``world_size`` - 1.
        """
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
        """Algorithm 2 of Tandon et al.: rows in the null space of a matrix whose rows add up to 0.

        Here, that matrix has the highest harmonics.
        """
        n = self.world_size
        h = _highest_harmonics(n, self.copies - 1)
        matrix = torch.zeros(n, n, dtype=torch.float64)
        for rank in range(n):
            others = [(rank + each) % n for each in range(1, self.copies)]
            matrix[rank, rank] = 1
            matrix[rank, others] = -torch.linalg.solve(h[:, others], h[:, rank])
        return matrix / matrix.abs().amax(1, keepdim=True)

    def _largest_amplification(self) -> float:
        """Over all sets of neighbours, which are the worst sets of ranks."""
        largest = 0.0
        for first in range(self.world_size):
            present = range(first, first + self.world_size - self.copies + 1)
            coefficients = self.coefficients(sum(1 << rank % self.world_size for rank in present))
            assert coefficients is not None
            factors = torch.tensor(coefficients, dtype=torch.float64).abs() @ self._matrix.abs()
            largest = max(largest, float(factors.max()))
        return largest


def _highest_harmonics(n: int, count: int) -> Tensor:
    """``count`` real harmonics of ``n`` points, any ``count`` columns of which are independent.

    Their frequencies are the highest ones: n / 2 and those around it. The rows of the result add up
    to 0. If n - count is odd, the frequencies are whole numbers, and constants are orthogonal to
    all of them. Otherwise they are halves of odd numbers, and constants are not. Then the columns
    are multiplied by values of something that is: a square wave without the highest harmonics.
    """
    angles = 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    rows: list[Tensor] = []
    for i in range(count // 2):
        frequency = (n - count + 1) / 2 + i
        rows += [torch.cos(frequency * angles), torch.sin(frequency * angles)]
    if count % 2:  # n / 2 itself, of which either the sine or the cosine is zero everywhere
        rows.append((-1.0) ** torch.arange(n, dtype=torch.float64))
    harmonics = torch.stack(rows)
    if (n - count) % 2:
        return harmonics
    odd = torch.arange(1, n - count, 2, dtype=torch.float64)[:, None]
    return harmonics * (torch.sin(odd / 2 * angles) / odd).sum(0)
