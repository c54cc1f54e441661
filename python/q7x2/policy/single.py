"""Levels of single gradients above the common one, with hysteresis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from q7x2.policy.retry import Retry

_MARGIN = 0.8  # share of the limit that the error must not exceed at the stronger level
_FIRST_SIGNS = 4  # measurements in a row before the first return
_KEPT = 0.5 ** (1 / 256)  # share of a ratio, per measurement


@dataclass
class _Border:
    """Between a level and the next milder one, for one gradient.

    Attributes:
        left: The error that made it leave the stronger level.
        ratio: The error at the stronger level, relative to that at the milder one; 0: unknown.
        retry: When to return to the stronger level.
    """

    left: float = 0.0
    ratio: float = 0.0
    retry: Retry = field(default_factory=lambda: Retry(_FIRST_SIGNS))


@dataclass
class _Gradient:
    """A gradient that is, or was, above the common level.

    Attributes:
        above: Number of levels above it.
        since: The first reduction at this level.
        borders: By the position of the stronger level.
    """

    above: int
    since: int
    borders: dict[str, _Border]


class SingleLevels:
    """Moves single gradients by their relative errors, so that each of them settles.

    A gradient whose error is beyond the limit goes one level up. The errors of both levels, the
    one that made it leave and the first one measured after it, have a ratio. It says what the error
    would be at the level below. Once that is below 0.8 of the limit in 4 measurements in a row, the
    gradient returns. If it has to leave again, it needs 8 such measurements, and so on. Ratios
    fade with a half-life of 256 measurements, so that one large error does not count for ever.

    Args:
        limit: The largest relative error of a gradient.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._gradients: dict[str, _Gradient] = {}

    def above(self, name: str) -> int:
        """Number of levels that a gradient is above the common one."""
        return self._gradients[name].above if name in self._gradients else 0

    def since(self, name: str) -> int:
        """The first reduction at the gradient's level; -1: it has never moved."""
        return self._gradients[name].since if name in self._gradients else -1

    def raise_level(self, name: str, error: float, step: int, position: int) -> None:
        """Move a gradient from ``position`` one level up, from the reduction ``step`` on."""
        its = self._gradients.setdefault(name, _Gradient(0, step, {}))
        border = its.borders.setdefault(str(position), _Border())
        border.left, border.ratio = error, 0.0
        border.retry.left()
        its.above, its.since = its.above + 1, step

    def returns(self, name: str, error: float, step: int, position: int) -> bool:
        """Take note of an error within the limit, and move the gradient back if it is time to.

        Args:
            error: At the level ``position``.
            step: The next reduction.
        """
        its = self._gradients.get(name)
        if its is None or its.above == 0:
            return False
        border = its.borders.setdefault(str(position - 1), _Border())
        if border.ratio == 0 and error > 0:
            border.ratio = border.left / error
        is_good = error * border.ratio < _MARGIN * self.limit
        border.ratio *= _KEPT
        if not border.retry.sign(is_good):
            return False
        its.above, its.since = its.above - 1, step
        return True

    def state_dict(self) -> dict[str, Any]:
        return {name: asdict(its) for name, its in self._gradients.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._gradients = {
            name: _Gradient(
                its["above"],
                its["since"],
                {
                    position: _Border(border["left"], border["ratio"], Retry(**border["retry"]))
                    for position, border in its["borders"].items()
                },
            )
            for name, its in state.items()
        }
