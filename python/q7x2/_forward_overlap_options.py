"""``ForwardOverlap``: the options of ``attach(overlap=...)``."""

from __future__ import annotations

from dataclasses import dataclass

from q7x2._option_checks import check_whole


@dataclass(frozen=True)
class ForwardOverlap:
    """All-gathers of updated weights that overlap the next forward; see docs/forward_overlap.md.

    Args:
        chunk_bytes: Buckets of DistributedDataParallel are cut into chunks of at most so many
            bytes. Each is reduce-scattered, stepped and all-gathered by itself. Small chunks let
            the layers that forward needs first pass the others; each costs a few messages.
        window: The number of all-gathers in progress at once. With fewer, the first ones have more
            of the network for themselves; with more, the network is never idle between two.

    Raises:
        ValueError: An option is out of range.
    """

    chunk_bytes: int = 4 << 20
    window: int = 2

    def __post_init__(self) -> None:
        check_whole("chunk_bytes", self.chunk_bytes, 1024)
        check_whole("window", self.window, 1)
