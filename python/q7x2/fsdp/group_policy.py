"""How the gradients of one FSDP param group travel: its parameters' policies, combined.

The gradients of a param group travel in one message per rank, so they have one policy: the
finest one that any of its compressed parameters has::

    skip  <  codec with few bits  <  codec with many bits  <  whole

So no gradient loses more than its policy allows. Vectors and other parameters that are not
compressed have no say.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from q7x2._core.extension import load
from q7x2._core.runner import Row
from q7x2.fsdp.options import check_fixed


@dataclass(frozen=True)
class GroupPolicy:
    """How the compressed gradients of a param group travel.

    Attributes:
        codec: That of its messages, if any are compressed.
        is_whole: Nothing is rounded, and what the residual holds goes along.
        is_skipped: Nothing is sent: gradients are added to the residual.
    """

    codec: str
    is_whole: bool = False
    is_skipped: bool = False


def combined(rows: Sequence[Row], codec: str) -> GroupPolicy:
    """The finest of the policies; of equally fine ones the first.

    Args:
        rows: Those of the compressed parameters of the group.
        codec: What the hook's options say.
    """
    named = [row.compressor or codec for row in rows if not (row.whole or row.skip)]
    if any(row.whole for row in rows):
        return GroupPolicy(codec, is_whole=True)
    if rows and not named:
        return GroupPolicy(codec, is_skipped=True)
    return GroupPolicy(max(named, key=_bits, default=codec))


def check_rows(rows: Sequence[Row], keeps_residuals: bool) -> None:
    """Raise ValueError for a policy that a reduce-scatter cannot have."""
    for row in rows:
        if row.compressor:
            check_compressor(row.compressor)
        if row.skip and not keeps_residuals:
            raise ValueError(
                "gradients can be skipped only by a hook that keeps residuals of them: expected "
                "q7x2.Sharded(use_error_feedback=True)"
            )


@functools.lru_cache(maxsize=64)
def check_compressor(name: str) -> None:
    """Raise ValueError unless a reduce-scatter can be sent through it."""
    if name.isdecimal():
        raise ValueError(
            f"a policy chose rank {name}, but q7x2.Sharded sends gradients through codecs: "
            "expected a codec's name"
        )
    check_fixed("policy", name)


@functools.lru_cache(maxsize=64)
def _bits(codec: str) -> float:
    bits: float = load().Codec(codec).bits
    return bits
