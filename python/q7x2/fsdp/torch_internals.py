"""What the compressed traffic needs of FSDP2: its entry points and its modules' facts.

Names differ between versions of torch, and part of them are private. Only this file knows them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

# torch 2.13 gave these two new names, and warns of the old ones.
if hasattr(dist, "all_gather_single"):
    all_gather_single = dist.all_gather_single
    reduce_scatter_single = dist.reduce_scatter_single
else:
    all_gather_single = dist.all_gather_into_tensor
    reduce_scatter_single = dist.reduce_scatter_tensor


def param_groups(model: torch.nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """(name, module, param group) of everything that FSDP communicates as one, each once."""
    from torch.distributed.fsdp import FSDPModule

    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        if hasattr(state, "_fsdp_param_groups"):
            groups = state._fsdp_param_groups
        else:
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        for i, group in enumerate(groups):
            if id(group) in seen:
                continue
            seen.add(id(group))
            label = name or "root"
            yield (label if len(groups) == 1 else f"{label}:{i}"), module, group


def watch_sharding(told: Callable[[torch.nn.Module], None]) -> None:
    """Call ``told`` with each module that ``fully_shard`` or ``replicate`` takes from now on."""
    from torch.distributed.fsdp._fully_shard import _fsdp_state

    FSDPState: Any = _fsdp_state.FSDPState
    init = FSDPState.init

    @functools.wraps(init)
    def watched(state: Any, modules: Any, *arguments: Any, **options: Any) -> None:
        init(state, modules, *arguments, **options)
        for module in modules:
            told(module)

    FSDPState.init = watched


def check_entry_points(group: Any) -> None:
    """Raise ValueError if this version of FSDP2 cannot be given other collectives."""
    for name in ("_all_gather_comm", "_reduce_scatter_comm", "_all_reduce_hook"):
        if not hasattr(group, name):
            raise ValueError(
                f"torch {torch.__version__} has no entry points for FSDP2's collectives: expected "
                "2.11 to 2.15"
            )


def install(
    group: Any,
    *,
    all_gather: Any,
    reduce_scatter: Any,
    all_reduce: Callable[[torch.Tensor], None] | None,
) -> Callable[[], None]:
    """Do what ``FSDPModule.set_custom_all_gather`` and its like do; return what undoes it.

    Those methods refuse modules of several param groups, because one collective would serve
    different meshes. Here each param group has its own. None leaves what is there.
    """
    given = {
        "_all_gather_comm": all_gather,
        "_reduce_scatter_comm": reduce_scatter,
        "_all_reduce_hook": all_reduce,
    }
    before = {name: getattr(group, name) for name in given}

    def restore() -> None:
        for name, value in before.items():
            setattr(group, name, value)

    for name, value in given.items():
        if value is not None:
            setattr(group, name, value)
    return restore


def shard_group(group: Any) -> ProcessGroup:
    """The process group over which FSDP shards; ValueError if it also replicates."""
    if group._is_hsdp:
        raise ValueError(
            "FSDP reduces over a mesh of two dimensions by itself: expected a model sharded over a "
            "mesh of one, and replicas for the other"
        )
    process_group: ProcessGroup | None = getattr(group.mesh_info, "shard_process_group", None)
    if process_group is None:
        raise ValueError("expected a model that FSDP2 shards, got one that it only replicates")
    return process_group


def process_group_of(group: Any) -> ProcessGroup:
    """A process group over which the param group communicates, whatever it does there."""
    mesh_info = group.mesh_info
    for name in ("shard_process_group", "replicate_process_group"):
        process_group: ProcessGroup | None = getattr(mesh_info, name, None)
        if process_group is not None:
            return process_group
    raise ValueError(f"expected a mesh to shard or to replicate over, got {mesh_info!r}")


def in_backward(group: Any) -> bool:
    """Whether the param group's weights are gathered for a backward."""
    return bool(group._training_state.name == "PRE_BACKWARD")


def dtype_of_parameters(group: Any) -> torch.dtype | None:
    """That of the param group's parameters, and of their gradients."""
    dtype: torch.dtype | None = group._orig_dtype
    return dtype


def reduced_dtype(parameter: Any, group: Any) -> torch.dtype:
    """That in which the param group reduces the parameter's gradient."""
    policy = group.mp_policy
    dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or parameter.sharded_param.dtype
    return dtype


def takes_late_gradients(group: Any, dtype: torch.dtype) -> bool:
    """Whether gradients reduced in this dtype may be added to ``sharded_param.grad`` at the end of
    backward.

    FSDP must neither divide it afterwards (float16, sums) nor copy it to the CPU, and nobody may
    read it before.
    """
    if dtype not in (torch.float32, torch.bfloat16) or group.force_sum_reduction_for_comms:
        return False
    return not any(
        parameter.offload_to_cpu
        or getattr(parameter.sharded_param, "_post_accumulate_grad_hooks", None)
        for parameter in group.fsdp_params
    )


def divisor_after(group: Any, dtype: torch.dtype) -> float:
    """What FSDP divides the param group's gradients by after it has reduced them in ``dtype``.

    1 where the reduction itself gives the mean.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    _, divisor, _, _ = _get_gradient_divide_factors(
        shard_group(group),
        None,
        dtype,
        group.device.type,
        group.gradient_divide_factor,
        group.force_sum_reduction_for_comms,
    )
    return 1.0 if divisor is None else float(divisor)


def prefetch_forward(modules: list[Any]) -> None:
    """Let each FSDP module gather the weights of the next one, unless the user has chosen."""
    if any(module._get_fsdp_state()._states_to_forward_prefetch for module in modules):
        return
    for module, following in itertools.pairwise(modules):
        module.set_modules_to_forward_prefetch([following])
