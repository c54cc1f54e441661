"""How much less compressed steps learn than dense ones, estimated from validations between them.

The loss follows a curve that nobody knows, and falls more and more slowly. So the speeds of two
segments cannot be compared directly: the later one is slower in any case. Instead, the losses are
fitted with falling curves. Dense steps advance along a curve by 1, compressed steps by 1 - harm::

    loss
     |*                     L = c + g phi(tau)
     | \\_                   phi: exp(-r tau), (1 + tau / k)^-p, tau, for many r, k and p
     |   *-.__              tau: dense steps + (1 - harm) compressed steps
     |        *----*---*    *: validations
     +---+----+----+---+--> steps
      A    B    B    A

For each harm, the likelihood of the losses is summed over all curves and all strengths of noise,
with c and g fitted in closed form. The likelihoods of independent probes multiply. Alternation in
the order ABBA, BAAB makes the estimate independent of the curve's slope and first bend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_RATES = tuple(0.1 * 1.2**i for i in range(26))  # rates of exp, in units of the probe's length
_RISING = _RATES[:13]  # rates of curves that fall faster and faster
_KNEES = tuple(2 ** (i / 2 - 5) for i in range(15))  # knees of power laws, in the same units
_POWERS = (0.5, 1.0, 2.0)
_LEAST_NOISE, _MOST_NOISE, _NOISES = 1e-4, 0.3, 17  # relative to the loss


@dataclass(frozen=True)
class Segments:
    """What one probe has seen.

    Attributes:
        steps: Number of steps of each segment.
        dense: Per segment, whether its steps were dense.
        losses: Validation losses: before the first segment, and after each segment.
    """

    steps: tuple[int, ...]
    dense: tuple[bool, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Harm:
    """What is known of the harm: 0.1 means that compressed steps learn 10 % less.

    Attributes:
        mean: Its expectation.
        beyond: The probability that it is larger than a limit.
        positive: The probability that it is larger than 0.
    """

    mean: float
    beyond: float
    positive: float


def estimate(probes: Sequence[Segments], limit: float) -> Harm:
    """Estimate the harm from all probes at one level.

    Args:
        limit: The limit for :attr:`Harm.beyond`.
    """
    import torch

    harms = _harms()
    nothing = torch.zeros(len(harms), _NOISES, dtype=torch.float64)
    table = sum((_log_likelihood(probe) for probe in probes), nothing)
    by_harm = table.logsumexp(1)
    shares = (by_harm - by_harm.logsumexp(0)).exp()
    return Harm(
        float((shares * harms).sum()),
        float(shares[harms > limit].sum()),
        float(shares[harms > 0].sum()),
    )


@cache
def _harms() -> Tensor:
    """The harms that are considered, all equally likely before the first probe."""
    import torch

    return torch.arange(-0.395, 0.5, 0.01, dtype=torch.float64)


@lru_cache(maxsize=64)
def _log_likelihood(probe: Segments) -> Tensor:
    """The log-likelihood, of shape [harms, strengths of noise]."""
    import torch

    steps = torch.tensor(probe.steps, dtype=torch.float64)
    dense = torch.tensor(probe.dense, dtype=torch.float64)
    advances = steps * (1 - _harms()[:, None] * (1 - dense)) / steps.sum()
    tau = torch.nn.functional.pad(advances.cumsum(1), (1, 0))
    losses = torch.tensor(probe.losses, dtype=torch.float64)
    # The noise of a loss is relative to it. Losses that are not all positive share one scale.
    scale = losses if bool((losses > 0).all()) else losses.abs().max().expand_as(losses)
    weights = 1 / scale.clamp(min=torch.finfo(torch.float64).tiny)
    constant = weights / weights.norm()

    def without_constant(values: Tensor) -> Tensor:
        weighted = values * weights
        result: Tensor = weighted - (weighted @ constant)[..., None] * constant
        return result

    curves, seen = without_constant(_curves(tau)), without_constant(losses)
    fitted = (curves @ seen).square() / curves.square().sum(-1)
    squares = (seen @ seen - fitted).clamp(min=0)
    noise = torch.logspace(
        math.log10(_LEAST_NOISE), math.log10(_MOST_NOISE), _NOISES, dtype=torch.float64
    )
    by_curve = -squares[..., None] / (2 * noise.square())
    likelihood: Tensor = by_curve.logsumexp(1) - (len(losses) - 1) * noise.log()
    return likelihood


def _curves(tau: Tensor) -> Tensor:
    """The curves, of shape [harms, curves, losses], from ``tau`` of shape [harms, losses]."""
    import torch

    time = tau[:, None, :]
    rates = torch.tensor([*_RATES, *(-r for r in _RISING)], dtype=tau.dtype)[None, :, None]
    knees = torch.tensor(_KNEES, dtype=tau.dtype)[None, :, None]
    powers = [(1 + time / knees) ** -power for power in _POWERS]
    return torch.cat([time, torch.exp(-rates * time), *powers], 1)
