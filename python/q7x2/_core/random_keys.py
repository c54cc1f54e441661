"""Keys of random numbers: functions of seed, step and place, equal in every run."""

from __future__ import annotations

import hashlib


def key_of(*numbers: int) -> int:
    """64 bits that depend on every one of the numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
