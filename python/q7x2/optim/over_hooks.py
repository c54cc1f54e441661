"""Optimizers that work together with a communication hook of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from q7x2._attach import attach
from q7x2._core.option_checks import check_whole
from q7x2._core.renamed import renamed
from q7x2.hooks.attached import Attached
from q7x2.hooks.options import HookOptions, LionUpdate, MeanMomentum


class _OverHook(torch.optim.Optimizer):
    """An optimizer for parameters of ``ddp`` that comes with the hook which makes its gradients."""

    hook: Attached

    def __init__(
        self,
        ddp: DistributedDataParallel,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]] | None,
        defaults: dict[str, Any],
    ) -> None:
        if not isinstance(ddp, DistributedDataParallel):
            raise TypeError(
                f"{type(self).__name__} needs a DistributedDataParallel, got {type(ddp).__name__}"
            )
        own = [p for p in ddp.parameters() if p.requires_grad]
        super().__init__(own if params is None else params, defaults)
        known = set(own)
        for group in self.param_groups:
            self._check(group)
            if not known.issuperset(group["params"]):
                raise ValueError("params must be parameters of ddp that need gradients")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step. As with other optimizers, parameters without a gradient are left alone.

        Args:
            closure: Called first, with gradients enabled.

        Returns:
            What ``closure`` returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        update = self._updates()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, parameter.grad, group)
        return loss

    def _check(self, group: dict[str, Any]) -> None:
        """Raises ValueError if an option of the group is out of range."""
        raise NotImplementedError

    def _updates(self) -> Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], None]:
        """What this step does to a parameter, with its gradient and its group."""
        raise NotImplementedError


def _check_group(group: dict[str, Any], momentum: float) -> None:
    """Raises ValueError for options that no step can be made with."""
    lr, eps, weight_decay = group["lr"], group["eps"], group["weight_decay"]
    if lr < 0 or eps < 0 or weight_decay < 0:
        raise ValueError(
            f"lr, eps and weight_decay must not be negative, got {lr}, {eps}, {weight_decay}"
        )
    if not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"betas must be at least 0 and less than 1, got {group['betas']}")
    if group["betas"][0] != momentum:
        raise ValueError(
            f"the first of betas must be the same in all groups, because one hook has the momentum "
            f"of all: expected {momentum}, got {group['betas'][0]}"
        )


@renamed(freeze_step="start_iter")
class OneBitAdam(_OverHook):
    """1-bit Adam (Tang et al., 2021): AdamW that sends one bit for each element of its momentum.

    In its first ``start_iter`` steps it is AdamW on whole gradients. Then the second moments
    stay as they are, unless ``refresh_every`` says otherwise. Ranks no longer send gradients
    but their momentum, through ``codec`` with error feedback on both ways, and what they
    receive, equal on all of them, is the momentum from which they go on. ``hook`` is the
    communication hook that it has attached to ``ddp``; its state is saved and loaded beside the
    optimizer's, ``hook.state_dict()``.

    An element whose second moment is still zero when it is frozen, because it has had no gradient,
    does not move until a step in full precision brings one (``refresh_every``). Rows of an
    embedding that were not used before are such elements.

    >>> ddp = DistributedDataParallel(model)
    >>> optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-3, start_iter=1000)

    Args:
        ddp: The model, without a hook. All ranks of its process group make the optimizer together.
        lr: The learning rate.
        params: Parameters of ``ddp``, or parameter groups, dicts with ``"params"`` and any of
            ``lr``, ``betas``, ``eps`` and ``weight_decay``, as other optimizers take them. The
            first of ``betas`` must be the same in all groups. None: all that need gradients.
        betas: Factors of the first and second moments. The second should remember long: where an
            element's gradients are rare, it must not be nearly zero when it is frozen, because the
            momentum is divided by its root from then on.
        eps: Added to the root of the second moments.
        weight_decay: Decoupled from the gradients, as in AdamW.
        start_iter: Steps in full precision, so that the second moments have settled: 15 to 20 %
            of a training in the paper, and at least those in which the learning rate warms up.
        refresh_every: After the freeze, one of every ``refresh_every`` steps is a step of AdamW on
            whole gradients. So the second moments follow slowly (Lu et al., 0/1 Adam, 2022). None:
            never.
        codec: The name of the momentum's codec.
        hook: The hook that compresses the momentum instead of a codec, for example
            ``q7x2.PowerSGD(rank=4)`` or ``q7x2.TopK(0.01)``. ``start_iter`` replaces that of the
            hook.
        scaler: The ``torch.amp.GradScaler`` of the training, if there is one.
        threads: The number of threads of the hook's tensor operations.

    Raises:
        ValueError: An option is out of its range, there is no such ``codec``, ``hook`` does not
            compress gradients, or ``params`` has parameters that ``ddp`` does not train.
        RuntimeError: ``ddp`` has a hook already.
        TypeError: ``ddp`` is no DistributedDataParallel.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]] | None = None,
        start_iter: int = 1000,
        refresh_every: int | None = None,
        codec: str = "onebit",
        hook: HookOptions | None = None,
        scaler: Any = None,
        threads: int = 1,
    ) -> None:
        check_whole("start_iter", start_iter, 1)
        if refresh_every is not None:
            check_whole("refresh_every", refresh_every, 2)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(ddp, params, defaults)
        self._options = MeanMomentum(
            codec,
            hook=hook,
            momentum=betas[0],
            start_iter=start_iter,
            refresh_every=refresh_every,
        )
        self.hook: Attached = attach(ddp, self._options, scaler=scaler, threads=threads)
        self.start_iter = start_iter
        self._by_name = dict(ddp.module.named_parameters())
        self.hook._before_forward(ddp, self._begin_compressing)

    @property
    def is_frozen(self) -> bool:
        """The gradients at hand are momenta, and the second moments stay as they are."""
        return not self.hook._is_detached and not self._options.is_full(self.hook.steps - 1)

    def _begin_compressing(self) -> None:
        """The momentum to go on from is the optimizer's, which has seen the gradients as they were
        at `step`, perhaps clipped; the hook has seen them as they were reduced."""
        step = self.hook.steps
        if self._options.is_full(step) or not self._options.is_full(step - 1):
            return
        moments = {name: self.state.get(p) for name, p in self._by_name.items()}
        self.hook.set_momentum({name: m["exp_avg"] for name, m in moments.items() if m})

    def _check(self, group: dict[str, Any]) -> None:
        _check_group(group, self.defaults["betas"][0])

    def _updates(self) -> Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], None]:
        return partial(self._update, self.is_frozen)

    def _update(
        self, frozen: bool, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["moment_steps"] = 0  # updates of the second moment
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        if frozen:
            state["exp_avg"].copy_(gradient)
        else:
            state["exp_avg"].lerp_(gradient, 1 - beta1)
        # One that is used for the first time after the freeze has no second moment yet.
        if not frozen or state["moment_steps"] == 0:
            state["moment_steps"] += 1
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if frozen:
            # What a codec makes of an element without gradients is no momentum of its own.
            state["exp_avg"].masked_fill_(state["exp_avg_sq"] == 0, 0)
        correction = 1 - beta2 ** state["moment_steps"]
        scale = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1 - beta1 ** state["step"])
        parameter.addcdiv_(state["exp_avg"], scale, value=-rate)


class DistributedLion(_OverHook):
    """Lion by majority vote (Liu et al., "distributed Lion", 2024): one bit for each element.

    Each rank has a momentum of its own gradients. It sends the sign of ``betas[0]`` times the
    momentum plus ``1 - betas[0]`` times the gradient, and the majority of the ranks' signs, times
    ``lr``, is the step of all of them. Ties are drawn. ``hook`` is the communication hook that it
    has attached to ``ddp``; its state is saved and loaded beside the optimizer's.

    >>> optimizer = q7x2.optim.DistributedLion(DistributedDataParallel(model), lr=1e-4)

    Args:
        ddp: The model, without a hook. All ranks of its process group make the optimizer together.
        lr: The learning rate: three to ten times smaller than that of Adam.
        betas: The share of the momentum in an update, and the factor with which it is kept.
        weight_decay: Decoupled from the gradients; three to ten times larger than that of Adam.
        params: Parameters of ``ddp``, or parameter groups with any of ``lr`` and ``weight_decay``.
            None: all that need gradients.
        scaler: The ``torch.amp.GradScaler`` of the training, if there is one.
        threads: The number of threads of the hook's tensor operations.

    Raises:
        ValueError: An option is out of its range, or ``params`` has parameters that ``ddp`` does
            not train.
        RuntimeError: ``ddp`` has a hook already.
        TypeError: ``ddp`` is no DistributedDataParallel.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]] | None = None,
        scaler: Any = None,
        threads: int = 1,
    ) -> None:
        super().__init__(ddp, params, {"lr": lr, "weight_decay": weight_decay})
        options = LionUpdate(momentum=betas[0], kept_momentum=betas[1])
        self.hook: Attached = attach(ddp, options, scaler=scaler, threads=threads)

    def _check(self, group: dict[str, Any]) -> None:
        if group["lr"] < 0 or group["weight_decay"] < 0:
            raise ValueError(
                f"lr and weight_decay must not be negative, got {group['lr']} and "
                f"{group['weight_decay']}"
            )

    def _updates(self) -> Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], None]:
        return self._update

    @staticmethod
    def _update(parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(gradient, alpha=-group["lr"])
