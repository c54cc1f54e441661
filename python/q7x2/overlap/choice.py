"""Which chunks, how many all-gathers at once, which share of steps during backward.

``choose`` simulates a step for each combination. The fastest one wins, but of those within 2 % of
it the one with the fewest chunks, because each costs messages and processor time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from q7x2.overlap.model import Moments, Piece, StepCosts, pieces_of, simulate
from q7x2.overlap.options import OverlapOptions

DEFAULT_CHUNK_BYTES, DEFAULT_WINDOW = 4 << 20, 2
CHUNK_BYTES = tuple(1 << exponent for exponent in range(18, 25))  # 256 KiB ... 16 MiB
WINDOWS = (1, 2, 4)
EARLY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_MOST_CHUNKS = 256
_TIE = 1.02


@dataclass(frozen=True)
class Candidate:
    """A combination of options, and what the simulation says of it.

    Attributes:
        chunk_bytes, window, early: See :class:`q7x2.overlap.OverlapOptions`.
        chunks: The total of all buckets.
        seconds: Time of a step.
    """

    chunk_bytes: int
    window: int
    early: float
    chunks: int
    seconds: float


class Chosen(NamedTuple):
    """The options of :class:`q7x2.overlap.OverlapOptions` without None."""

    chunk_bytes: int
    window: int
    early: float


def defaults(options: OverlapOptions) -> Chosen:
    """What is left to choose has the same values for every model."""
    return Chosen(
        options.chunk_bytes or DEFAULT_CHUNK_BYTES,
        options.window or DEFAULT_WINDOW,
        options.early or 0.0,
    )


def choose(
    costs: StepCosts, options: OverlapOptions, ranks: int
) -> tuple[list[Candidate], list[Moments]]:
    """The candidates, the best one first, and what happens to each chunk in a step with that one.

    Args:
        options: Those that are given have their one value in all candidates.
    """
    candidates = [
        Candidate(
            size, window, early, len(pieces), simulate(pieces, costs, window, early, ranks)[0]
        )
        for size, pieces in _partitions(costs, options, ranks)
        for window in ([options.window] if options.window else WINDOWS)
        for early in (EARLY if options.early is None else [options.early])
    ]
    limit = _TIE * min(each.seconds for each in candidates)
    candidates.sort(
        key=lambda each: (max(limit, each.seconds), each.chunks, each.window, each.early)
    )
    best = candidates[0]
    pieces = pieces_of(costs, best.chunk_bytes, ranks)
    return candidates, simulate(pieces, costs, best.window, best.early, ranks)[1]


def _partitions(
    costs: StepCosts, options: OverlapOptions, ranks: int
) -> Iterator[tuple[int, Sequence[Piece]]]:
    """Chunk sizes and the chunks that they make; of sizes that make the same ones, the largest."""
    seen: set[int] = set()
    sizes = [options.chunk_bytes] if options.chunk_bytes else sorted(CHUNK_BYTES, reverse=True)
    for size in sizes:
        pieces = pieces_of(costs, size, ranks)
        if len(pieces) not in seen and (not seen or len(pieces) <= _MOST_CHUNKS):
            seen.add(len(pieces))
            yield size, pieces
