"""What ``attach(overlap=...)`` takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from q7x2._core.agreement import check_agreement
from q7x2.hooks.compose import Allreduce
from q7x2.hooks.runner import check_has_no_hook, reduced_parameters
from q7x2.overlap.forward import AttachedForward
from q7x2.overlap.options import OverlapOptions


def attach_forward(
    ddp: Any,
    hook: Any,
    overlap: Any,
    optimizer: torch.optim.Optimizer | None,
    others: dict[str, Any],
) -> AttachedForward:
    """``attach(ddp, hook, overlap=overlap, optimizer=optimizer)``; a collective call.

    Args:
        others: Arguments of ``attach`` that do not go with ``overlap``, by name; None if not given.
    """
    if overlap != "forward" and not isinstance(overlap, OverlapOptions):
        raise ValueError(f"overlap must be 'forward' or an OverlapOptions, got {overlap!r}")
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"overlap='forward' needs a DistributedDataParallel, got {type(ddp).__name__}"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"overlap='forward' needs the optimizer, got {optimizer!r}")
    if not isinstance(hook, Allreduce) or hook.dtype is not None:
        raise ValueError(
            "overlap='forward' reduce-scatters whole gradients, which no compressing hook does: "
            f"attach q7x2.Allreduce(), got {hook!r}"
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"overlap='forward' takes no {name}")
    check_has_no_hook(ddp)
    parameters = [(name, p) for name, p in reduced_parameters(ddp) if isinstance(p, nn.Parameter)]
    options = OverlapOptions() if overlap == "forward" else overlap
    if options.early and parameters[0][1].device.type != "cpu":
        raise ValueError("OverlapOptions(early=...) is for parameters on the CPU")
    problem: Exception | None = None
    try:
        _check_model(ddp, parameters)
        _check_optimizer(optimizer, parameters)
    except ValueError as error:
        problem = error
    groups = [len(group["params"]) for group in optimizer.param_groups]
    shapes = [(name, tuple(p.shape), p.dtype) for name, p in parameters]
    agreed = {"overlap": options, "optimizer": type(optimizer).__name__, "groups": groups}
    check_agreement("overlap", agreed | {"parameters": shapes}, ddp.process_group, problem)
    if problem is not None:
        raise problem
    return AttachedForward(ddp, optimizer, options, parameters)


def _check_model(ddp: DistributedDataParallel, parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Raises ValueError for what DDP does differently in each step, and for unusual parameters."""
    if ddp.find_unused_parameters or ddp.static_graph:
        raise ValueError(
            "overlap='forward' needs a DistributedDataParallel without find_unused_parameters and "
            "static_graph: every step must reduce all parameters"
        )
    if ddp.mixed_precision is not None:
        raise ValueError("overlap='forward' does not go with DDP's mixed_precision: use autocast")
    if hasattr(ddp.module, "_orig_mod"):
        raise ValueError("overlap='forward' does not go with torch.compile: modules must be called")
    for name, module in ddp.module.named_modules():
        if getattr(module, "sparse", False):
            raise ValueError(f"module {name!r} has sparse gradients, which cannot be scattered")
    device = parameters[0][1].device
    for name, p in parameters:
        if type(p.data) is not torch.Tensor or not p.is_floating_point() or p.device != device:
            raise ValueError(
                f"parameter {name!r}: expected a plain tensor of floats on {device}, got a "
                f"{type(p.data).__name__} of {p.dtype} on {p.device}"
            )
        if not p.is_contiguous():
            raise ValueError(f"parameter {name!r} is not contiguous")


def _check_optimizer(
    optimizer: torch.optim.Optimizer, parameters: list[tuple[str, nn.Parameter]]
) -> None:
    """Raises ValueError unless the optimizer trains what DDP reduces, and nothing else."""
    trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    reduced = {p for _, p in parameters}
    missing = [name for name, p in parameters if p not in trained]
    if missing:
        raise ValueError(
            f"the optimizer must have all parameters that DDP reduces, but not {missing[0]!r}"
        )
    if len(trained) > len(reduced):
        raise ValueError(
            f"the optimizer has {len(trained) - len(reduced)} parameters that DDP does not reduce"
        )
