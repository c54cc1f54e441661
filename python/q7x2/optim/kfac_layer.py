"""The statistics of one layer, from which K-FAC makes its two factors.

A linear layer computes ``y = W a`` per row, where ``a`` ends with a 1 if there is a bias. Let ``g``
be the gradient of the loss with respect to ``y``. The Fisher matrix of W is approximated as a
Kronecker product of the *input factor* A = E[a aT] and the *output factor* G = E[g gT]. A
convolution is a linear layer whose rows are the patches of the input (Grosse & Martens 2016).

Both sums are collected during backward, where the input is still alive for autograd anyway::

    forward    input ---- kept by a hook of the output ----+
    backward                       gradient of the output -+-> sums of a aT and g gT
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Module = nn.Linear | nn.Conv2d


@dataclass
class Statistics:
    """Sums over the rows since the last step.

    Attributes:
        inputs: The sum of a aT, float32 of shape [inputs, inputs].
        outputs: The sum of g gT, float32 of shape [outputs, outputs].
        samples: Rows of a linear layer, images of a convolution.
        rows: Rows of a linear layer, positions of all images of a convolution.
    """

    inputs: Tensor
    outputs: Tensor
    samples: int = 0
    rows: int = 0


class Layer:
    """A layer that is preconditioned.

    Args:
        name: The module's name in its model.
        module: Its weight needs gradients. A bias without gradients is not part of the factors.
    """

    def __init__(self, name: str, module: Module) -> None:
        self.name, self.module = name, module
        bias = module.bias
        self.bias = bias if bias is not None and bias.requires_grad else None
        outputs, inputs = module.weight.flatten(1).shape
        self.dims = inputs + (self.bias is not None), outputs
        self._sums: Statistics | None = None

    @property
    def weight(self) -> Tensor:
        return self.module.weight

    def watch(self, is_wanted: Callable[[], bool]) -> Any:
        """Collect statistics in each forward at which ``is_wanted()``; returns the hook's handle.

        Tensor hooks see the gradient of the value that the layer returned, also if a later module
        changes it in place.
        """

        def after_forward(
            module: nn.Module, args: Sequence[Tensor], named: dict[str, Tensor], output: Tensor
        ) -> None:
            if output.requires_grad and is_wanted():
                inputs = args[0] if args else named["input"]
                output.register_hook(  # type: ignore[no-untyped-call]
                    partial(self._add, inputs.detach())
                )

        return self.module.register_forward_hook(after_forward, with_kwargs=True)

    def discard(self) -> None:
        """Forget the statistics since the last step."""
        self._sums = None

    def factors(self, loss_scale: float) -> tuple[Tensor, Tensor] | None:
        """A and G of what was collected, float32; None if the layer was not used.

        The loss is taken to be a mean over samples, so gradients of one sample are the collected
        ones times the number of samples.

        Args:
            loss_scale: By which the loss was multiplied.
        """
        if self._sums is None:
            return None
        s = self._sums
        return s.inputs / s.samples, s.outputs * (s.samples**2 / s.rows / loss_scale**2)

    def gradient(self) -> Tensor | None:
        """The gradients of weight and bias, a float32 matrix of shape [outputs, inputs]."""
        if self.weight.grad is None:
            return None
        matrix = self.weight.grad.flatten(1).float()
        if self.bias is not None and self.bias.grad is not None:
            matrix = torch.cat([matrix, self.bias.grad.float().unsqueeze(1)], 1)
        return matrix

    def directions(self, matrix: Tensor) -> dict[Tensor, Tensor]:
        """The parts of such a matrix, by parameter, in the parameter's shape and dtype."""
        if self.bias is None:
            return {self.weight: matrix.view_as(self.weight).to(self.weight.dtype)}
        weight = matrix[:, :-1].reshape(self.weight.shape)
        bias = matrix[:, -1].contiguous()
        return {self.weight: weight.to(self.weight.dtype), self.bias: bias.to(self.bias.dtype)}

    @torch.no_grad()
    def _add(self, inputs: Tensor, gradient: Tensor) -> None:
        samples, a, g = self._rows(inputs.float(), gradient.float())
        if self.bias is not None:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        if self._sums is None:
            inputs_dim, outputs_dim = self.dims
            self._sums = Statistics(
                g.new_zeros(inputs_dim, inputs_dim), g.new_zeros(outputs_dim, outputs_dim)
            )
        self._sums.inputs.addmm_(a.t(), a)
        self._sums.outputs.addmm_(g.t(), g)
        self._sums.samples += samples
        self._sums.rows += len(g)

    def _rows(self, inputs: Tensor, gradient: Tensor) -> tuple[int, Tensor, Tensor]:
        """The number of samples, the rows of the input, and those of the output's gradient."""
        layer = self.module
        if isinstance(layer, nn.Linear):
            g = gradient.reshape(-1, gradient.shape[-1])
            return len(g), inputs.reshape(-1, inputs.shape[-1]), g
        if inputs.dim() == 3:
            inputs, gradient = inputs.unsqueeze(0), gradient.unsqueeze(0)
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = F.pad(inputs, layer._reversed_padding_repeated_twice, mode)
        patches = F.unfold(padded, layer.kernel_size, layer.dilation, stride=layer.stride)
        a = patches.transpose(1, 2).flatten(0, 1)
        return len(inputs), a, gradient.flatten(2).transpose(1, 2).flatten(0, 1)


def layers_of(model: nn.Module, is_left_out: Callable[[str], bool]) -> list[Layer]:
    """The layers of a model that can be preconditioned, in its order.

    They are Linear and Conv2d without groups, whose weight needs gradients and belongs to them
    alone.

    Args:
        is_left_out: Whether the layer of this name is not to be preconditioned.
    """
    modules = dict(model.named_modules())
    owners: dict[Tensor, int] = {}
    for module in modules.values():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[parameter] = owners.get(parameter, 0) + 1
    layers = []
    for name, module in modules.items():
        if not isinstance(module, (nn.Linear, nn.Conv2d)) or is_left_out(name):
            continue
        if isinstance(module, nn.Conv2d) and module.groups != 1:
            continue
        own = [module._parameters.get("weight"), module._parameters.get("bias")]
        if own[0] is None or not own[0].requires_grad:
            continue
        if all(p is None or owners[p] == 1 for p in own):
            layers.append(Layer(name, module))
    return layers
