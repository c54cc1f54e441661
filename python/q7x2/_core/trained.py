"""The parameters of a model that ranks train together."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trained_parameters(
    model: nn.Module, device: torch.device | None = None
) -> list[tuple[str, nn.Parameter]]:
    """Those that need gradients, by name, in the model's order.

    Args:
        device: On which all must be. None: that of the first one.

    Raises:
        ValueError: There are none, or one is not a plain tensor of floats on the device.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters that need gradients")
    device = parameters[0][1].device if device is None else device
    for name, p in parameters:
        if type(p.data) is not Tensor or p.device != device or not p.is_floating_point():
            raise ValueError(
                f"parameter {name!r}: expected a plain tensor of floats on {device}, got a "
                f"{type(p.data).__name__} of {p.dtype} on {p.device}"
            )
    return parameters
