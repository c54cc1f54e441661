"""The weights and the optimizer of one rank, which all ranks change in the same way."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.state_bytes import decode, encode
from q7x2._core.trained import trained_parameters


class Replica:
    """One rank's copy of what is trained, with gradients as one vector.

    Args:
        model: Its parameters that need gradients are trained: plain tensors on the CPU.
        optimizer: Over the model's parameters; equal on all ranks.

    Attributes:
        shapes: Names, shapes and dtypes of the parameters, for comparisons between ranks.
        numel: Elements of all parameters together.

    Raises:
        TypeError: ``model`` is not a module, or ``optimizer`` is not an optimizer.
        ValueError: A parameter is not a plain tensor on the CPU, or there are no parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be of type Module, got {model!r}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be of type Optimizer, got {optimizer!r}")
        self._parameters = trained_parameters(model, torch.device("cpu"))
        self._optimizer = optimizer
        self.shapes = [(name, tuple(p.shape), p.dtype) for name, p in self._parameters]
        self.numel = sum(p.numel() for _, p in self._parameters)

    def gradient(self) -> Tensor:
        """The gradients of all parameters, float32; a new vector of ``numel`` elements."""
        flat = torch.zeros(self.numel)
        for (_, p), view in zip(self._parameters, self._views(flat), strict=True):
            if p.grad is not None:
                view.copy_(p.grad)
        return flat

    def apply(self, mean: Tensor) -> bool:
        """Take a step of the optimizer with these gradients, and zero them.

        Returns:
            False, and nothing has changed, if the mean has Inf or NaN.
        """
        # Ten times faster than isfinite: both ends are NaN if any element is.
        is_finite = all(math.isfinite(end) for end in torch.aminmax(mean))
        if is_finite:
            for (_, p), view in zip(self._parameters, self._views(mean), strict=True):
                p.grad = view.to(p.dtype)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return is_finite

    def state(self) -> Tensor:
        """Weights and the optimizer's state, as a vector of uint8."""
        weights = {name: p.detach() for name, p in self._parameters}
        return encode({"weights": weights, "optimizer": self._optimizer.state_dict()})

    @torch.no_grad()
    def load(self, state: Tensor) -> None:
        """Take over what :meth:`state` gave on another rank."""
        values: dict[str, Any] = decode(state)
        for name, p in self._parameters:
            p.copy_(values["weights"][name])
        self._optimizer.load_state_dict(values["optimizer"])

    def start(self, group: ProcessGroup) -> None:
        """All ranks take the state of rank 0; a collective call."""
        state = self.state()
        length = torch.tensor(state.numel())
        dist.broadcast(length, group=group, group_src=0)
        if group.rank():
            state = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(state, group=group, group_src=0)
        if group.rank():
            self.load(state)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [p.numel() for _, p in self._parameters])
        return [part.view(p.shape) for (_, p), part in zip(self._parameters, parts, strict=True)]
