"""Which rank owns which elements of a bucket, and where they lie in messages.

    bucket    | a a a a a b b b c c c c |     parameters a, b, c; a and c belong to group 0
    3 ranks   | rank 0| rank 1| rank 2  |
    message   | a a a a | a c b b | c c c . |     one block per rank, of equal lengths, by group

A bucket is cut into chunks. Each chunk is reduce-scattered, stepped and all-gathered by itself. In
a chunk, each rank owns one or several runs of elements. Its *block* has the elements of these runs,
ordered by parameter group, so the optimizer steps on one flat tensor per group.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Run = tuple[int, int]
"""The first element and the one behind the last, in a bucket."""


@dataclass(frozen=True)
class Member:
    """A parameter in a bucket.

    Attributes:
        begin: Its first element in the bucket.
        numel: The number of its elements.
        group: The index of its parameter group in the optimizer.
    """

    begin: int
    numel: int
    group: int


@dataclass(frozen=True)
class Segment:
    """Elements that are consecutive in a parameter, in the bucket and in a block.

    Attributes:
        member: The index of the parameter in the bucket.
        group: The index of its parameter group.
        at: The first element in the parameter.
        in_bucket: The first element in the bucket.
        in_block: The first element in the block of the rank that owns it.
        length: The number of elements.
    """

    member: int
    group: int
    at: int
    in_bucket: int
    in_block: int
    length: int


def even_runs(begin: int, end: int, ranks: int) -> list[Run]:
    """One run per rank, as the parts of an all-reduce divide a slice: rounded down."""
    length = end - begin
    borders = [begin + length * rank // ranks for rank in range(ranks + 1)]
    return list(itertools.pairwise(borders))


def chunks_of(
    length: int, ranks: int, chunk: int, slice_length: int | None
) -> list[list[list[Run]]]:
    """For each chunk of a bucket and each rank, the runs that the rank owns.

    Args:
        length: The number of elements of the bucket.
        ranks: The number of ranks.
        chunk: The number of elements of a chunk at most, but at least a slice.
        slice_length: The number of elements of a slice of the all-reduce whose order of summation
            the reduce-scatter shall have. Rank p then owns part p of every slice. None: the order
            does not matter, and each rank owns one run per chunk.
    """
    if length == 0:
        return []
    if slice_length is None:
        count = -(-length // chunk)
        cuts = [[border] for border in even_runs(0, length, count)]
    else:
        slices = [(b, min(b + slice_length, length)) for b in range(0, length, slice_length)]
        per_chunk = max(1, chunk // slice_length)
        cuts = [slices[i : i + per_chunk] for i in range(0, len(slices), per_chunk)]
    chunks = []
    for cut in cuts:
        parts = [even_runs(begin, end, ranks) for begin, end in cut]
        chunks.append([[part[rank] for part in parts] for rank in range(ranks)])
    return chunks


def segments_of(runs: Sequence[Run], members: Sequence[Member]) -> list[Segment]:
    """The segments of a rank's block, in the order of the block."""
    found = []
    for index, member in enumerate(members):
        for begin, end in runs:
            first = max(begin, member.begin)
            length = min(end, member.begin + member.numel) - first
            if length > 0:
                found.append((member.group, first, index, length))
    segments, in_block = [], 0
    for group, first, index, length in sorted(found):
        at = first - members[index].begin
        segments.append(Segment(index, group, at, first, in_block, length))
        in_block += length
    return segments
