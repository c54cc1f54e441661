"""A hook at work in C++: its process groups, and what all ranks must agree on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from q7x2._core.backends import is_on_q7x2
from q7x2._core.groups import group_like, ranks_of, resolve_group
from q7x2.hooks.residuals import VARIABLE, measure_every

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._C import HookRunner
    from q7x2.hooks.options import HookOptions
    from q7x2.hooks.residuals import MeasuredRunner


def register(
    ddp: DistributedDataParallel, runner: HookRunner | MeasuredRunner, hook: HookOptions
) -> None:
    expect_buckets(ddp, runner)
    runner.register(ddp.reducer)
    ddp.register_forward_pre_hook(_check_divisor)
    assert ddp.logger is not None
    ddp.logger._set_comm_hook_name(f"q7x2.{type(hook).__name__}")


def check_has_no_hook(ddp: DistributedDataParallel) -> None:
    """Raise RuntimeError if ``ddp`` has a hook, before anything is made for another one."""
    hook = ddp._get_ddp_logging_data().get("comm_hook")  # type: ignore[no-untyped-call]
    if hook:
        raise RuntimeError(
            f"this DistributedDataParallel has the hook {hook} already, and keeps it, even if it "
            "is detached: attach one hook, such as q7x2.Compose of several, or make a new "
            "DistributedDataParallel of its module for another hook"
        )


def expect_buckets(ddp: DistributedDataParallel, runner: HookRunner | MeasuredRunner) -> None:
    """Tells the hook if DDP reduces no buckets whose parameters are unused."""
    if getattr(ddp, "skip_all_reduce_unused_params", False):
        runner.expect_fewer_buckets()


def _check_divisor(ddp: Any, _: Any) -> None:
    if ddp._join_config.enable and not ddp._divide_by_initial_world_size:
        raise ValueError(
            "ddp.join(divide_by_initial_world_size=False) divides gradients by the number of ranks "
            "that still have inputs, and DDP does not tell a hook that number: expected True"
        )


def place_in(group: ProcessGroup) -> tuple[int, int]:
    """This rank's number in the group, and the number of ranks."""
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def reduced_parameters(ddp: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """Those that DDP reduces, by name."""
    if ddp._use_python_reducer:
        raise ValueError(
            "DDP's Python reducer takes no hook: set torch._dynamo.config.optimize_ddp to another "
            "value than 'python_reducer' before the DistributedDataParallel is made"
        )
    parameters: dict[torch.Tensor, str] = {}
    for module_name, module in ddp.module.named_modules():
        for name, p in module.named_parameters(recurse=False):
            # DDP reduces what the root is told to ignore, because it calls it ".weight" here.
            full_name = f"{module_name}.{name}"
            if p.requires_grad and full_name not in ddp.parameters_to_ignore:
                parameters.setdefault(p, full_name.removeprefix("."))
    reduced = ddp._get_ddp_logging_data()["num_parameter_tensors"]  # type: ignore[no-untyped-call]
    if len(parameters) != reduced:
        raise ValueError(
            f"DDP reduces {reduced} parameters, of which {len(parameters)} need gradients now: "
            "attach the hook before you freeze parameters of a DistributedDataParallel"
        )
    return [(name, p) for p, name in parameters.items()]


def part_of(group: ProcessGroup) -> str | None:
    """The part of the job, in the keys of state; see :class:`_hook_state.Keys`. The group of rank
    0, which may be all ranks, has plain keys, so its size may change."""
    first = min(ranks_of(group))
    return f"group_{first}" if first > 0 else None


def check_same_hook(
    hook: object,
    group: ProcessGroup,
    parameters: list[tuple[str, torch.Tensor]],
    threads: int,
    step: int,
) -> None:
    """Raise ValueError, on all ranks, if one attaches what another does not."""
    from q7x2._core.agreement import check_agreement

    options = {"hook": repr(hook), "threads": threads, "step": step, VARIABLE: measure_every()}
    shapes = {f"parameter {name}": f"{list(p.shape)} of {p.dtype}" for name, p in parameters}
    check_agreement("hook of the same model", options | shapes, group)


def make_runner(
    hook: HookOptions,
    group: ProcessGroup | None,
    parameters: list[tuple[str, torch.Tensor]],
    *,
    threads: int = 1,
    are_shards: bool = False,
    device: torch.device | None = None,
    serves_many_models: bool = False,
    may_skip: bool = False,
    step: int = 0,
) -> HookRunner:
    """``hook`` at work in a thread of its own, over process groups like ``group``, with its ranks,
    backend, options and timeout; a collective call.

    Args:
        device: Where the gradients are; the parameters' device if None.
        serves_many_models: With a hook that keeps nothing.
        may_skip: A gradient scaler skips steps: what they did to the state must be undone exactly.
        step: From which the hook goes on, on all ranks.
    """

    from q7x2._core.extension import load
    from q7x2.hooks.options import Allreduce, Job

    group = resolve_group(group)
    if any(p.is_complex() for _, p in parameters) and not isinstance(hook, Allreduce):
        raise ValueError("the parameters are complex, which of all hooks only Allreduce takes")
    check_same_hook(hook, group, parameters, threads, step)
    device = device or parameters[0][1].device
    on_q7x2 = is_on_q7x2(group, device)
    factory = hook.factory(Job(parameters, on_q7x2, are_shards))
    with _unchecked():
        lanes = [group_like(group, device) for _ in range(hook.lanes(on_q7x2))]
    runner: HookRunner = load().HookRunner(
        lanes, parameters, factory, threads, serves_many_models, may_skip
    )
    return runner


@contextmanager
def _unchecked() -> Iterator[None]:
    """Process groups made in here are not wrapped by TORCH_DISTRIBUTED_DEBUG=DETAIL, which has
    ranks wait for each other where a collective starts: lanes have no order between them."""
    from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

    level = get_debug_level()
    set_debug_level(DebugLevel.OFF)
    try:
        yield
    finally:
        set_debug_level(level)
