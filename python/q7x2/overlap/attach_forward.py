"""``attach``: the next forward overlaps with the all-gathers of new weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from q7x2._core.agreement import check_agreement
from q7x2.hooks.runner import check_has_no_hook, reduced_parameters
from q7x2.overlap.forward import AttachedForward
from q7x2.overlap.options import OverlapOptions


def attach(
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    options: OverlapOptions | None = None,
) -> AttachedForward:
    """Let half of each all-reduce of ``ddp`` run during the next forward.

    Gradients are reduce-scattered, each rank steps on its shard, and the new weights are
    all-gathered during the next forward (docs/forward_overlap.md). The loop of the training stays
    as it is.

    >>> ddp = DistributedDataParallel(model)
    >>> optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    >>> attached = q7x2.overlap.attach(ddp, optimizer)

    All ranks of the model's process group call it. A DistributedDataParallel takes one hook, and
    keeps it.

    Args:
        ddp: The model. Its gradients are sent as they are: it takes no other hook.
        optimizer: It updates each element by itself, and its steps are divided among the ranks.
        options: None: all of them are chosen.

    Returns:
        The model at work: its figures.

    Raises:
        NotElementwiseError: The optimizer is not elementwise.
        RuntimeError: The model has a hook already.
        TypeError: An argument is not what it should be.
        ValueError: The model, its parameters or the optimizer do something that does not go with
            it, or ranks have different ones.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"forward overlap needs a DistributedDataParallel, got {type(ddp).__name__}"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be of type Optimizer, got {optimizer!r}")
    options = OverlapOptions() if options is None else options
    if not isinstance(options, OverlapOptions):
        raise TypeError(f"options must be of type OverlapOptions, got {options!r}")
    check_has_no_hook(ddp)
    parameters = [(name, p) for name, p in reduced_parameters(ddp) if isinstance(p, nn.Parameter)]
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
            "forward overlap needs a DistributedDataParallel without find_unused_parameters and "
            "static_graph: every step must reduce all parameters"
        )
    if ddp.mixed_precision is not None:
        raise ValueError("forward overlap does not go with DDP's mixed_precision: use autocast")
    if hasattr(ddp.module, "_orig_mod"):
        raise ValueError("forward overlap does not go with torch.compile: modules must be called")
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
