"""``attach`` for models that FSDP2 shards: the all-reduce between replicas of the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._attach import Attached, make_runner

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from q7x2._hook_options import HookOptions


def attach_fsdp(
    model: Any, hook: HookOptions, replicas: ProcessGroup | None, scaler: Any, threads: int
) -> Attached:
    """See :func:`q7x2.attach`.

    FSDP calls the hook of each of its modules with what its reduce-scatter gave: the shards of the
    module's gradients, one after the other. For the hook that is one parameter, of the module's
    name. FSDP waits for the result before it goes on.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule

    if replicas is None:
        raise ValueError(
            "attach needs replicas for an FSDP2 model: the process group of the ranks that hold "
            "the same shards"
        )
    modules: list[Any] = []
    shards: list[tuple[str, torch.Tensor]] = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        group = module._get_fsdp_state()._fsdp_param_group
        if group is None:
            continue
        if group._is_hsdp:
            raise ValueError(
                "FSDP reduces over a mesh of two dimensions by itself: expected a model sharded "
                "over a mesh of one, and replicas for the other"
            )
        numel = sum(
            parameter.padded_sharded_param_size.numel()
            for parameter in group.fsdp_params
            if parameter.sharded_param.requires_grad
        )
        modules.append(module)
        shards.append((name or "root", torch.empty(numel, device="meta")))
    runner = make_runner(hook, replicas, shards, threads)
    seen: set[int] = set()

    def reduce_shard(index: int, gradient: torch.Tensor) -> None:
        if index in seen:  # the backward before this one left some modules out
            seen.clear()
        is_first = not seen
        seen.add(index)
        is_last = len(seen) == len(modules)
        if is_last:
            seen.clear()
        runner.reduce_tensor(index, gradient.view(-1), is_first, is_last).wait()

    for index, module in enumerate(modules):
        module.set_all_reduce_hook(lambda gradient, index=index: reduce_shard(index, gradient))
    attached = Attached(
        runner, hook, shards, dist.get_rank(replicas), dist.get_world_size(replicas), scaler
    )
    attached._follow(model)
    return attached
