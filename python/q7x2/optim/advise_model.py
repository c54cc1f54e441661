"""How long a training step takes, predicted from what was measured of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Computing:
    """One forward and backward without communication, on the slowest rank.

    Attributes:
        seconds: From its beginning to its end.
        ready: By parameter, in the model's order: when its gradient was ready, from the beginning.
        bytes: By parameter, of its gradient.
        cpu_seconds: Core seconds of all threads.
    """

    seconds: float
    ready: Sequence[float]
    bytes: Sequence[int]
    cpu_seconds: float


@dataclass(frozen=True)
class Reducing:
    """What a hook needs to reduce gradients, with nothing else to do.

    Attributes:
        per_bucket: Seconds, for each bucket.
        per_byte: Seconds, for each byte of the gradients.
        drain_per_byte: Seconds, for each byte of the last bucket: the work on a bucket that
            happens at the same time as messages of the next one, and has none to hide behind.
        cpu_seconds: Core seconds of the hook's thread, for all gradients.
    """

    per_bucket: float
    per_byte: float
    drain_per_byte: float
    cpu_seconds: float

    @classmethod
    def through(
        cls, few: tuple[int, float], many: tuple[int, float], total: int, cpu_seconds: float
    ) -> Reducing:
        """What fits two measurements, (buckets, seconds) of ``total`` bytes in equal buckets.

        If many buckets take longer, each of them costs something. If they are faster, they hide
        something of each other.
        """
        (n, few_seconds), (m, many_seconds) = few, many
        per_bucket = drain = 0.0
        if m > n and many_seconds >= few_seconds:
            per_bucket = (many_seconds - few_seconds) / (m - n)
        elif m > n:
            drain = min(few_seconds, (few_seconds - many_seconds) / (1 / n - 1 / m))
        rest = max(0.0, few_seconds - n * per_bucket - drain / n)
        return cls(per_bucket, rest / total, drain / total, cpu_seconds)


def buckets_of(
    sizes: Sequence[int], cap: int, ready: Sequence[float] | None = None
) -> list[list[int]]:
    """DDP's buckets, as lists of positions.

    DDP fills its first buckets from the last registered parameter to the first. After the first
    step, it fills them again in the order in which gradients became ready.

    Args:
        sizes: Bytes of the gradients, in the model's order.
        cap: A bucket ends with the gradient with which it reaches this many bytes.
        ready: When gradients became ready, in the same order. None: the buckets of the first step.
    """
    order = list(reversed(range(len(sizes))))
    if ready is not None:
        order.sort(key=lambda position: ready[position])
    buckets: list[list[int]] = [[]]
    filled = 0
    for position in order:
        if filled >= cap:
            buckets.append([])
            filled = 0
        buckets[-1].append(position)
        filled += sizes[position]
    return buckets


def step_seconds(
    computing: Computing, reducing: Reducing, buckets: Sequence[Sequence[int]], cores: float
) -> float:
    """One forward and backward with its reduction.

    Buckets are reduced one after the other, in their order, each not before its last gradient is
    ready. And the hook's thread needs a core that computing does not have: ranks that share cores
    cannot be faster than the work of all of them on these cores.

    Args:
        cores: Cores of the host per rank.
    """
    end = 0.0
    size = 0
    for bucket in buckets:
        ready = max(computing.ready[position] for position in bucket)
        size = sum(computing.bytes[position] for position in bucket)
        end = max(end, ready) + reducing.per_bucket + size * reducing.per_byte
    end += size * reducing.drain_per_byte
    work = (computing.cpu_seconds + reducing.cpu_seconds) / max(cores, 1e-9)
    return max(end, computing.seconds, work)


def accumulation(computing_seconds: float, seconds: float, overhead: float, most: int) -> int:
    """The fewest backwards per reduction with which communication costs at most a share.

    Args:
        computing_seconds: Time of one backward without communication.
        seconds: Time of one with a reduction.
        overhead: The share of the computing time that communication may cost.
        most: The largest answer.
    """
    beyond = max(0.0, seconds - computing_seconds)
    if beyond <= overhead * computing_seconds:
        return 1
    return min(most, math.ceil(beyond / (overhead * computing_seconds)))
