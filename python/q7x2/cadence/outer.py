"""The outer optimizer: what a mean outer gradient does to the weights that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from q7x2._core.option_checks import check_factor, check_flags, check_positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OuterSGD:
    """SGD on outer gradients, with momentum m:  m = momentum * m + g;  weights -= lr * d.

    d is g + momentum * m with ``nesterov``, and m without. The defaults are those of DiLoCo
    (Douillard et al., 2023, arXiv 2311.08105). ``OuterSGD(lr=1, momentum=0)`` averages weights,
    which is local SGD.

    Args:
        lr: The outer learning rate.
        momentum: The factor of the momentum; 0: none is kept.
        nesterov: Look one step ahead. Without effect if ``momentum`` is 0.
        divide_by_rate: Keep the momentum of g divided by the inner learning rate, and multiply the
            step by it again. A change of the inner rate then also changes what is left of earlier
            gradients: SlowMo (Wang et al., 2020, arXiv 1910.00643).

    Raises:
        ValueError: ``lr`` is not positive, ``momentum`` is not at least 0 and less than 1, or
            another option is neither True nor False.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    divide_by_rate: bool = False

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_factor("momentum", self.momentum)
        check_flags(nesterov=self.nesterov, divide_by_rate=self.divide_by_rate)

    def apply(
        self, weights: Tensor, gradient: Tensor, momentum: Tensor | None, inner_rate: float
    ) -> None:
        """Change ``weights`` and ``momentum`` in place; ``gradient`` is used up.

        Args:
            weights: float32, of one dimension.
            gradient: The mean outer gradient, which is subtracted. Shape and dtype of ``weights``.
            momentum: The momentum, of the shape and dtype of ``weights``; None if the factor is 0.
            inner_rate: The learning rate of the inner optimizer, for ``divide_by_rate``.
        """
        scale = inner_rate if self.divide_by_rate else 1.0
        if scale == 0:  # the limit of the formula: the momentum takes no part
            weights.add_(gradient, alpha=-self.lr)
            return
        if scale != 1:
            gradient.div_(scale)
        direction = gradient
        if momentum is not None:
            momentum.mul_(self.momentum).add_(gradient)
            direction = gradient.add_(momentum, alpha=self.momentum) if self.nesterov else momentum
        weights.add_(direction, alpha=-self.lr * scale)
