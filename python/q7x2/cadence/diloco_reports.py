"""What the ranks tell each other in the uncompressed part of a message of DiLoCo.

Each rank fills its own slot of a vector of zeros, so the sum over all ranks is everybody's slots::

    rank 0 sends  | r0 | 0  | 0  |
    rank 1 sends  | 0  | r1 | 0  |     sum: | r0 | r1 | r2 |, bit for bit
    rank 2 sends  | 0  | 0  | r2 |
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

_EXACT = 2**24  # whole numbers that a float32 holds


@dataclass(frozen=True)
class Report:
    """What one rank says.

    Attributes:
        contributes: 1 if the rank has an outer gradient, 0 if it has just joined.
        step: Modulo 2**24.
        interval: That the rank is in.
        rate: The learning rate of its inner optimizer.
        step_seconds: Mean of one step without communication in its last finished interval.
        wire_seconds: Time of the messages of that interval.
    """

    contributes: float
    step: float
    interval: float
    rate: float
    step_seconds: float
    wire_seconds: float

    @staticmethod
    def at(
        contributes: bool,
        step: int,
        interval: int,
        rate: float,
        step_seconds: float,
        wire_seconds: float,
    ) -> Report:
        whole = float(contributes), float(step % _EXACT), float(interval % _EXACT)
        return Report(*whole, rate, step_seconds, wire_seconds)


WIDTH = len(fields(Report))


def write(slots: Tensor, rank: int, report: Report) -> None:
    """Fill the slots, float32 of ``WIDTH`` per rank, with this rank's report."""
    slots.zero_()
    slots[rank * WIDTH : (rank + 1) * WIDTH] = torch.tensor(astuple(report), dtype=slots.dtype)


def read(slots: Tensor) -> list[Report]:
    """Everybody's reports, by rank, from the summed slots."""
    return [Report(*row) for row in slots.view(-1, WIDTH).tolist()]


def check_alike(reports: list[Report]) -> None:
    """Raises RuntimeError, on all ranks alike, unless all ranks are at the same step."""
    first = reports[0]
    for rank, report in enumerate(reports):
        if (report.step, report.interval) != (first.step, first.interval):
            raise RuntimeError(
                f"ranks do not synchronise at the same time: rank 0 is at step {first.step:.0f} of "
                f"an interval of {first.interval:.0f}, rank {rank} at step {report.step:.0f} of "
                f"one of {report.interval:.0f}. An interval must depend on its facts alone, and "
                f"all ranks must call step() equally often"
            )
