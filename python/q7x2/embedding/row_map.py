"""Which rank owns which row of a sharded embedding.

A row's *position* is ``row * multiplier mod rows``, and each rank owns one contiguous range of
positions. The multiplier is about ``rows`` divided by the golden ratio and has no factor in common
with ``rows``, so positions are a permutation of the rows.

    row        0   1   2   3   4   5   6   7        rows = 8, multiplier = 3
    position   0   3   6   1   4   7   2   5
    owner      0   0   1   0   1   1   0   1        two ranks with four positions each

- Hot rows are spread. Ids are often given by frequency, so the hot rows are neighbours. Multiples
  of the golden ratio cover a circle evenly (the three-distance theorem), so any run of neighbours
  is shared out evenly. A random hash would do so on average only.
- The position does not depend on the number of ranks. Another number of ranks owns other ranges of
  the same positions, so a checkpoint is resharded by copying ranges, and no row moves inside one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Products of a row and a multiplier fit int64, and positions fit int32 on the wire.
MOST_ROWS = 2**31 - 1
_GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
# How far from the golden ratio a multiplier may lie: far enough to find good ones for any number.
_NEAR = 100


def _multiplier(rows: int) -> int:
    """The number near ``rows`` divided by the golden ratio that spreads rows most evenly."""
    golden = round(rows / _GOLDEN_RATIO)
    near = range(max(1, golden - _NEAR), min(rows, golden + _NEAR) + 1)
    return min((each for each in near if math.gcd(each, rows) == 1), key=lambda m: _bias(m, rows))


def _bias(multiplier: int, rows: int) -> int:
    """How unevenly multiples of ``multiplier`` modulo ``rows`` lie: the sum of the partial
    quotients of their continued fraction, which bounds the discrepancy."""
    total = 0
    while multiplier:
        quotient, rest = divmod(rows, multiplier)
        total, rows, multiplier = total + quotient, multiplier, rest
    return total


@dataclass(frozen=True)
class RowMap:
    """The owners of ``rows`` rows among ``ranks`` ranks; this process is ``rank``."""

    rows: int
    ranks: int
    rank: int
    multiplier: int = field(init=False)
    per_rank: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", _multiplier(self.rows))
        object.__setattr__(self, "per_rank", -(-self.rows // self.ranks))

    @property
    def begin(self) -> int:
        """This rank's first position."""
        return min(self.rank * self.per_rank, self.rows)

    @property
    def end(self) -> int:
        """The position after this rank's last one. The last ranks may own less, or nothing."""
        return min(self.begin + self.per_rank, self.rows)

    def positions(self, rows: Tensor) -> Tensor:
        """The positions of ``rows``, int64, of the same shape."""
        return (rows.to(torch.int64) * self.multiplier).remainder_(self.rows)

    def rows_at(self, positions: Tensor) -> Tensor:
        """The rows at ``positions``, int64, of the same shape; the inverse of :meth:`positions`."""
        inverse = pow(self.multiplier, -1, self.rows) if self.rows > 1 else 0
        return (positions.to(torch.int64) * inverse).remainder_(self.rows)

    def owned_rows(self, device: torch.device) -> Tensor:
        """The rows of this rank, by position, int64."""
        return self.rows_at(torch.arange(self.begin, self.end, device=device))

    def counts(self, positions: Tensor) -> Tensor:
        """How many of ``positions`` each rank owns, int64, by rank."""
        owners = positions.div(self.per_rank, rounding_mode="floor")
        return torch.bincount(owners, minlength=self.ranks)
