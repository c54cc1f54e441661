"""Bytes that an all-reduce of a hook's messages puts on the links, from the parameters' shapes.

A ring or a scatter and gather among n ranks moves 2 (n - 1) / n of a message out of each. The
kernel counts headers once for each packet it hands to the NIC, and segments large ones later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

Shape = tuple[int, ...]
MessageBytes = Callable[[Sequence[Shape]], float]

# Ethernet, IPv4, TCP with its timestamps.
HEADER_BYTES = 14 + 20 + 32


def per_rank(message_bytes: float, ranks: int) -> float:
    """Bytes that one of `ranks` sends for an all-reduce of a message."""
    return 2 * (ranks - 1) / ranks * message_bytes


def payload(link_bytes: float, packets: float) -> float:
    """What the packets carry: `link_bytes` without headers."""
    return link_bytes - HEADER_BYTES * packets


def dense(element_bytes: int) -> MessageBytes:
    return lambda shapes: float(element_bytes * sum(prod(shape) for shape in shapes))


def grouped(bits: int, group: int) -> MessageBytes:
    """Codes of `bits` bits, and a scale of 4 bytes for each `group` of them; vectors whole."""

    def total(shapes: Sequence[Shape]) -> float:
        per_element = bits / 8 + 4 / group
        return sum(prod(shape) * (per_element if len(shape) > 1 else 4) for shape in shapes)

    return total


def powersgd(
    rank: int, min_rate: float = 2, alternating: bool = False, factor_bytes: int = 2
) -> MessageBytes:
    """r (n + m) for a matrix that this makes `min_rate` times smaller; others travel whole."""

    def total(shapes: Sequence[Shape]) -> float:
        size = 0.0
        for shape in shapes:
            n, m = shape[0], prod(shape[1:])
            r = min(n, m, rank)
            if len(shape) < 2 or (n + m) * r * min_rate >= n * m:
                size += 4 * prod(shape)
            else:
                size += factor_bytes * r * (n + m) / (2 if alternating else 1)
        return size

    return total
