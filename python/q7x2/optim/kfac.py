"""``KFAC``: natural gradient steps whose inverses are divided among the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from q7x2._core.agreement import check_agreement
from q7x2._core.groups import resolve_group
from q7x2._core.option_checks import check_factor, check_positive, check_strings, check_whole
from q7x2.hooks.base import matches
from q7x2.optim.kfac_curvature import MATRICES, Curvature, Update
from q7x2.optim.kfac_layer import Layer, layers_of


@dataclass(frozen=True)
class KFACStats:
    """What a :class:`KFAC` has done since it was made; equal on all ranks.

    Attributes:
        steps: Steps so far.
        inverses: Inverses that were made, by all ranks together.
        kept_inverses: Inverses that were due and kept, because their factor had changed little.
        factor_bytes: The bytes of all messages with factors; an all-reduce counts its tensor once.
        inverse_bytes: The bytes of all messages with inverses; a broadcast counts its tensor once.
    """

    steps: int = 0
    inverses: int = 0
    kept_inverses: int = 0
    factor_bytes: int = 0
    inverse_bytes: int = 0


class KFAC(torch.optim.Optimizer):
    """K-FAC (Martens & Grosse 2015), distributed: each inverse is made by one rank and broadcast.

    A step of a Linear or Conv2d layer is the gradient times the inverses of its two Kronecker
    factors. The factors are running means over all ranks. The inverses are divided among the ranks,
    and each owner broadcasts its own, as in KAISA (Pauloski et al. 2021). All other parameters take
    steps of SGD. docs/kfac.md has the formulas.

    >>> ddp = DistributedDataParallel(model)  # with or without q7x2.attach
    >>> optimizer = q7x2.optim.KFAC(ddp, lr=0.1, damping=0.003)
    >>> loss_of(ddp(x), y).backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()

    All ranks make it together and call :meth:`step` equally often, with equal gradients. The loss
    is a mean over the samples of a rank. Gradients may be accumulated over several backwards.

    Args:
        model: With or without DistributedDataParallel around it. Gradients are averaged by DDP, or
            by the caller before each step.
        lr: The learning rate.
        params: Parameters of ``model``, or parameter groups with any of ``lr``, ``momentum``,
            ``weight_decay`` and ``damping``. None: all that need gradients.
        momentum: The factor of the momentum, as in SGD.
        weight_decay: Added to the preconditioned gradient, times the parameter.
        damping: λ, added to the factors' product before the inversion, and divided between the two
            by their traces.
        factor_decay: What is left of a factor at each update. The first updates have a plain mean.
        factors_every: Steps between two updates of the factors.
        inverses_every: Steps between two updates of the inverses.
        tolerance: An inverse is kept if its factor has changed by at most this share since it was
            inverted, in the Frobenius norm (Osawa et al. 2019). 0: every inverse that is due is
            made.
        kl_clip: A bound of the step: lr**2 times the product of the gradient and the preconditioned
            gradient, summed over all layers, is at most this. None: no bound.
        exclude: Patterns of names of modules that take steps of SGD, for example a large output
            layer.
        scaler: The ``torch.amp.GradScaler`` of the training, if there is one.
        group: The group over which gradients are averaged; the default group if None.

    Raises:
        ValueError: An option is out of range, the model has no layer to precondition, or ranks have
            different options or layers.
        TypeError: ``model`` is not a module.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        damping: float = 0.003,
        factor_decay: float = 0.95,
        factors_every: int = 1,
        inverses_every: int = 10,
        tolerance: float = 0.0,
        kl_clip: float | None = 0.001,
        exclude: Sequence[str] = (),
        scaler: Any = None,
        group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be of type Module, got {model!r}")
        check_factor("factor_decay", factor_decay)
        check_whole("factors_every", factors_every, 1)
        check_whole("inverses_every", inverses_every, 1)
        check_factor("tolerance", tolerance)
        check_strings("exclude", exclude)
        if kl_clip is not None:
            check_positive("kl_clip", kl_clip)
        module = model.module if isinstance(model, DistributedDataParallel) else model
        names = [name for name, _ in module.named_modules()]
        for pattern in exclude:
            if not any(matches(name, [pattern]) for name in names):
                raise ValueError(f"exclude: no module's name matches {pattern!r}")
        self._layers = layers_of(module, lambda name: matches(name, exclude))
        own = [p for p in module.parameters() if p.requires_grad]
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "damping": damping,
            "steps": 0,
        }
        super().__init__(own if params is None else params, defaults)
        known = set(own)
        for options in self.param_groups:
            _check_group(options)
            if not known.issuperset(options["params"]):
                raise ValueError("params must be parameters of model that need gradients")
        given = {p for options in self.param_groups for p in options["params"]}
        self._layers = [each for each in self._layers if given.issuperset(_parameters(each))]
        self._device = _device_of(self._layers)
        self._group = group
        check_agreement(
            "KFAC",
            {
                "factor_decay": factor_decay,
                "factors_every": factors_every,
                "inverses_every": inverses_every,
                "tolerance": tolerance,
                "kl_clip": kl_clip,
                "groups": [_options_of(options) for options in self.param_groups],
                "layers": [(each.name, *each.dims) for each in self._layers],
            },
            self.group,
        )
        self._curvature = Curvature(self._layers, self._device, factor_decay, tolerance)
        self._factors_every, self._inverses_every = factors_every, inverses_every
        self._kl_clip = kl_clip
        self._scaler = scaler
        self._stats = KFACStats()
        self._handles = [each.watch(self._wants_statistics) for each in self._layers]

    # ---- what is known of it ---------------------------------------------------------------------

    @property
    def group(self) -> ProcessGroup:
        """The group that it was made for; the default group of today if that was None."""
        return resolve_group(self._group)

    @property
    def layers(self) -> list[str]:
        """Names of the modules that are preconditioned."""
        return [layer.name for layer in self._layers]

    @property
    def steps(self) -> int:
        """Steps so far, those before a loaded state's checkpoint included."""
        steps: int = self.param_groups[0]["steps"]
        return steps

    @property
    def stats(self) -> KFACStats:
        """What it has done since it was made."""
        return self._stats

    # ---- training --------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update factors and inverses if they are due, and all parameters; a collective call.

        If a message fails, nothing has changed on this rank, and the step can be tried again with
        another default group.

        Args:
            closure: Called first, with gradients enabled.

        Returns:
            What ``closure`` returns, or None.

        Raises:
            FloatingPointError: A factor has Inf or NaN, or cannot be inverted, on all ranks alike.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.group
        update = Update(
            self._curvature, [self.state[layer.weight] for layer in self._layers], group
        )
        if self.steps % self._factors_every == 0:
            update.factors(1.0 if self._scaler is None else float(self._scaler.get_scale()))
        update.inverses(self._dampings(), self.steps % self._inverses_every == 0)
        for layer, state in zip(self._layers, update.states, strict=True):
            self.state[layer.weight].update(state)
            layer.discard()
        directions = self._directions()
        for options in self.param_groups:
            for parameter in options["params"]:
                if parameter.grad is not None:
                    self._update(parameter, directions.get(parameter, parameter.grad), options)
            options["steps"] += 1
        counts = {name: count + update.counts[name] for name, count in vars(self._stats).items()}
        self._stats = KFACStats(**counts | {"steps": self._stats.steps + 1})
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, and forget the statistics that belong to them.

        Args:
            set_to_none: Set the gradients to None instead of zero.
        """
        super().zero_grad(set_to_none)
        for layer in self._layers:
            layer.discard()

    def detach(self) -> None:
        """Take the hooks off the model. The optimizer is not to be used any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, on any number of ranks.

        Factors and inverses are equal on all ranks, so the state of one rank serves all. They stay
        float32, whatever the dtype of the parameters.
        """
        super().load_state_dict(dict(state_dict))
        saved = [each for options in state_dict["param_groups"] for each in options["params"]]
        mine = [each for options in self.param_groups for each in options["params"]]
        for key, parameter in zip(saved, mine, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if name in MATRICES:
                    copy = value.to(device=parameter.device, dtype=torch.float32, copy=True)
                    self.state[parameter][name] = copy

    def _wants_statistics(self) -> bool:
        return self.steps % self._factors_every == 0

    def _dampings(self) -> list[float]:
        """By layer, as its weight's parameter group has it."""
        by_parameter = {p: o["damping"] for o in self.param_groups for p in o["params"]}
        return [by_parameter[layer.weight] for layer in self._layers]

    def _directions(self) -> dict[Tensor, Tensor]:
        """The preconditioned gradients, by parameter, scaled as ``kl_clip`` wants it."""
        rates = {p: options["lr"] for options in self.param_groups for p in options["params"]}
        matrices, total = [], 0.0
        for layer in self._layers:
            state, gradient = self.state[layer.weight], layer.gradient()
            if gradient is None or "input_inverse" not in state:
                continue
            matrix = state["output_inverse"] @ gradient @ state["input_inverse"]
            matrices.append((layer, matrix))
            if self._kl_clip is not None:
                total += float(rates[layer.weight] ** 2 * (matrix * gradient).sum())
        factor = 1.0
        if self._kl_clip is not None and total > self._kl_clip:
            factor = math.sqrt(self._kl_clip / total)
        directions: dict[Tensor, Tensor] = {}
        for layer, matrix in matrices:
            directions |= layer.directions(matrix.mul_(factor))
        return directions

    def _update(self, parameter: Tensor, direction: Tensor, options: dict[str, Any]) -> None:
        if options["weight_decay"]:
            direction = direction.add(parameter, alpha=options["weight_decay"])
        if options["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            direction = state["momentum_buffer"].mul_(options["momentum"]).add_(direction)
        parameter.add_(direction, alpha=-options["lr"])


def _device_of(layers: Sequence[Layer]) -> torch.device:
    """The dtype of the layers' weights; ValueError unless they can be preconditioned together."""
    if not layers:
        raise ValueError("the model has no Linear or Conv2d layer that can be preconditioned")
    device = layers[0].weight.device
    for layer in layers:
        for p in _parameters(layer):
            if type(p.data) is not Tensor or p.device != device:
                raise ValueError(
                    f"layer {layer.name!r}: expected plain tensors on {device}, got a "
                    f"{type(p.data).__name__} on {p.device}"
                )
    return device


def _parameters(layer: Layer) -> list[Tensor]:
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


def _options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a parameter group must be equal on all ranks when it is made."""
    return {name: value for name, value in options.items() if name != "params"}


def _check_group(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options that no step can be made with."""
    check_positive("damping", options["damping"])
    check_factor("momentum", options["momentum"])
    if options["lr"] < 0 or options["weight_decay"] < 0:
        raise ValueError(
            f"lr and weight_decay must not be negative, got {options['lr']} and "
            f"{options['weight_decay']}"
        )
