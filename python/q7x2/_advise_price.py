"""What compression costs: the final loss of hooks, as measured on one training.

The figures are those of the table in docs/hooks.md, which says how they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from q7x2._hook_options import HookOptions


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
    "int8": Price(0.0016, -0.0030, 0.0062),
    "hadamard+int4:g=128": Price(0.0077, -0.0122, 0.0276),
    "int4:g=128": Price(0.0105, -0.0085, 0.0295),
}
_OF_RANKS = {8: Price(0.0106, 0.0081, 0.0130), 4: Price(0.0240, 0.0184, 0.0296)}


def price_of(hook: HookOptions) -> Price | None:
    """Return the measured price of a hook; None if it was not measured with these options."""
    from dataclasses import replace

    from q7x2._hook_codecs import measured_best
    from q7x2._hook_options import Allreduce, OneBit, PowerSGD, Quantize, TopK

    if hook == Allreduce():
        return NONE
    if isinstance(hook, Quantize):
        price = _OF_CODECS.get(measured_best(hook.codec))
        return price if hook == Quantize(hook.codec) else None
    if isinstance(hook, PowerSGD) and isinstance(hook.rank, int):
        # The first steps of a training are few, whether they are compressed or not.
        plain = replace(hook, start_iter=PowerSGD(rank=hook.rank).start_iter)
        return _OF_RANKS.get(hook.rank) if plain == PowerSGD(rank=hook.rank) else None
    if hook == OneBit():
        return Price(0.0343, 0.0229, 0.0457)
    if hook == TopK(0.01):
        return Price(0.0595, 0.0442, 0.0748)
    return None
