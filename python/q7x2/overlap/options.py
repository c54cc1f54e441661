"""``OverlapOptions``: the options of ``attach``, and the figures of a training."""

from __future__ import annotations

from dataclasses import dataclass

from q7x2._core.option_checks import check_whole


@dataclass(frozen=True)
class OverlapOptions:
    """All-gathers of updated weights that overlap the next forward; see docs/forward_overlap.md.

    Half of each all-reduce overlaps backward, as in DeAR (Zhang et al., 2023, arXiv 2302.12445).

    What is None is chosen: the first seven steps are DDP's own, six of them are measured, and a
    simulation finds the fastest options. On devices other than the CPU, with one rank, or if ranks
    do not step after each backward, chunks are of 4 MiB instead, the window is 2, and early is 0.

    Args:
        chunk_bytes: Buckets of DistributedDataParallel are cut into chunks of at most this many
            bytes. Each is reduce-scattered, stepped and all-gathered by itself. Small chunks let
            the layers that forward needs first pass the others; each costs a few messages.
        window: The number of all-gathers in progress at once. With fewer, the first ones have more
            of the network for themselves; with more, the network is never idle between two.
        early: The share of the weights that step and are gathered during backward already, from 0
            to 1: those that forward needs last. A step then has less to wait for if backward is
            longer than its reduce-scatters. Every backward must be followed by a step, and
            clipping and gradient scalers raise.

    Raises:
        ValueError: An option is out of range.
    """

    chunk_bytes: int | None = None
    window: int | None = None
    early: float | None = 0.0

    def __post_init__(self) -> None:
        if self.chunk_bytes is not None:
            check_whole("chunk_bytes", self.chunk_bytes, 1024)
        if self.window is not None:
            check_whole("window", self.window, 1)
        if self.early is not None and not 0 <= self.early <= 1:
            raise ValueError(f"early must be from 0 to 1, got {self.early}")

    @property
    def leaves_a_choice(self) -> bool:
        """An option is None."""
        return None in (self.chunk_bytes, self.window, self.early)


@dataclass(frozen=True)
class OverlapStats:
    """What an :class:`AttachedForward` has done on this rank since it was made.

    Attributes:
        steps: The number of steps on shards. The first step of a training does not count.
        chunks: The number of chunks; 0 before the second backward.
        step_wait_seconds: How long steps have waited for reduce-scatters.
        forward_wait_seconds: How long forwards, and others that need the weights, have waited for
            all-gathers.
    """

    steps: int = 0
    chunks: int = 0
    step_wait_seconds: float = 0.0
    forward_wait_seconds: float = 0.0
