"""How a sharded embedding begins: what its options may be, and the initial rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from q7x2._core.option_checks import check_flags, check_whole
from q7x2._core.random_keys import key_of
from q7x2.embedding.row_map import MOST_ROWS, RowMap

# Rows that are initialised at once, with random numbers that depend on the seed and their place.
_BLOCK = 4096


def check_options(
    rows: int, dim: int, dtype: torch.dtype, padding_idx: int | None, staleness: int, average: bool
) -> None:
    """Raises ValueError or TypeError for arguments of a ShardedEmbedding that are out of range."""
    check_whole("rows", rows, 1, MOST_ROWS)
    check_whole("dim", dim, 1)
    check_whole("staleness", staleness, 0)
    check_flags(average=average)
    if padding_idx is not None:
        check_whole("padding_idx", padding_idx, 0, rows - 1)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating point dtype, got {dtype}")


@torch.no_grad()
def fill(
    local: Tensor, row_map: RowMap, init: Callable[[Tensor], Any], seed: int, padding: int
) -> None:
    """Fill ``local``, the rows of this rank, with ``init``, and the row of ``padding`` with zeros.

    Each block of positions has random numbers of its own, so the table does not depend on the
    number of ranks. The caller's random numbers go on as if nothing had been drawn.
    """
    first = row_map.begin // _BLOCK * _BLOCK
    with torch.random.fork_rng(devices=[]):
        for begin in range(first, row_map.end, _BLOCK):
            end = min(begin + _BLOCK, row_map.rows)
            torch.default_generator.manual_seed(key_of(seed, begin))
            block = torch.empty(end - begin, local.shape[1], dtype=local.dtype, device="cpu")
            init(block)
            low, high = max(begin, row_map.begin), min(end, row_map.end)
            local[low - row_map.begin : high - row_map.begin] = block[low - begin : high - begin]
    if row_map.begin <= padding < row_map.end:
        local[padding - row_map.begin].zero_()
