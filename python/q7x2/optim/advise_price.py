"""What compression costs: the final loss of hooks, as measured on one training.

The figures are those of docs/hooks.md, which says how they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from q7x2.hooks.options import HookOptions


@dataclass(frozen=True)
class Price:
    """A final loss minus that of uncompressed training.

    Attributes:
        loss: The mean over the seeds.
        low, high: Its 95 % interval.
    """

    loss: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.loss:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


NONE = Price(0.0, 0.0, 0.0)
_OF_CODECS = {
    "int8": Price(-0.0008, -0.0017, 0.0001),
    "hadamard+int4:g=128": Price(0.0210, -0.0035, 0.0456),
    "int4:g=128": Price(0.0150, 0.0109, 0.0191),
}


def price_of(hook: HookOptions) -> Price | None:
    """Return the measured price of a hook; None if it was not measured with these options."""
    from q7x2.hooks.options import Allreduce, OneBit, PowerSGD, Quantize, TopK

    if hook == Allreduce():
        return NONE
    if isinstance(hook, Quantize):
        price = _OF_CODECS.get(hook.codec)
        return price if hook == Quantize(hook.codec) else None
    measured = (
        (PowerSGD(rank=8), Price(0.0248, 0.0192, 0.0303)),
        (PowerSGD(rank=8, start_iter=0), Price(0.0440, 0.0214, 0.0665)),
        (PowerSGD(rank=4), Price(0.0485, 0.0394, 0.0576)),
        (PowerSGD(rank=4, start_iter=0), Price(0.0792, 0.0616, 0.0967)),
        (OneBit(), Price(0.0412, 0.0300, 0.0523)),
        (OneBit(start_iter=0), Price(0.0824, 0.0528, 0.1120)),
        (TopK(0.01), Price(0.0878, 0.0767, 0.0989)),
        (TopK(0.01, start_iter=0), Price(0.5810, 0.2577, 0.9042)),
    )
    return next((price for like, price in measured if hook == like), None)
