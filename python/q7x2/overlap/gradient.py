"""The gradient of a parameter while its sum over the ranks is scattered: no rank has it whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Unscale = Callable[[torch.Tensor, torch.Tensor], None]


class ScatteredGradient(torch.Tensor):
    """Stands in ``p.grad`` between backward and the optimizer's step. It has no memory.

    ``zero_grad`` drops it, and with it the gradient. ``GradScaler`` finds the scattered gradients
    through it. Everything else raises RuntimeError.
    """

    _unscale: Unscale

    @staticmethod
    def of(parameter: torch.Tensor, unscale: Unscale) -> ScatteredGradient:
        """The gradient of ``parameter``.

        Args:
            unscale: Called with ``found_inf`` and ``inv_scale`` when a scaler unscales the
                gradients.
        """
        gradient: ScatteredGradient = torch.Tensor._make_wrapper_subclass(
            ScatteredGradient,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
        )
        gradient._unscale = unscale
        return gradient

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> None:
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            gradients, found_inf, inv_scale = args
            gradients[0]._unscale(found_inf, inv_scale)
            return
        raise RuntimeError(
            f"{func}: this gradient is scattered over the ranks, because the model is attached "
            "with forward overlap. Clip with clip_grad_norm_ of what attach returned; accumulate "
            "gradients in DistributedDataParallel.no_sync; clear them with "
            "zero_grad(set_to_none=True)"
        )

    def share_memory_(self) -> ScatteredGradient:
        """``module.share_memory()`` calls it; there is no memory to share."""
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"ScatteredGradient({tuple(self.shape)}, {self.dtype})"
