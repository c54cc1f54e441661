"""``attach`` for models that FSDP2 shards: the all-reduce between replicas of the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._attached import Attached
from q7x2._hook_runner import make_runner

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
    groups: list[Any] = []  # modules that FSDP treats as one share one, and one hook
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        group = module._get_fsdp_state()._fsdp_param_group
        if group is None or any(group is other for other in groups):
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
        if numel > 0:  # else FSDP never calls the hook
            modules.append(module)
            shards.append((name or "root", torch.empty(numel, device="meta")))
            groups.append(group)
    if not groups:
        raise ValueError("the model has no sharded parameters that need gradients")
    device = groups[0].fsdp_params[0].sharded_param.device
    runner = make_runner(
        hook,
        replicas,
        shards,
        threads,
        are_shards=True,
        device=device,
        may_skip=scaler is not None,
    )
    seen: set[int] = set()

    def end_step() -> None:
        seen.clear()
        runner.end_reductions()

    def reduce_shard(index: int, gradient: torch.Tensor) -> None:
        name, shard = shards[index]
        if gradient.numel() != shard.numel():
            raise RuntimeError(
                f"FSDP module {name!r}: some of its parameters got no gradient in this backward: "
                f"expected all or none of them, {shard.numel()} elements, got {gradient.numel()}"
            )
        if index in seen:  # the backward before this one ended with an error
            seen.clear()
        is_first = not seen
        seen.add(index)
        if is_first:  # which modules come last is not known before
            torch.autograd.Variable._execution_engine.queue_callback(end_step)
        runner.reduce_tensor(index, gradient.view(-1), is_first).wait()

    for index, module in enumerate(modules):
        module.set_all_reduce_hook(lambda gradient, index=index: reduce_shard(index, gradient))
    attached = Attached(
        runner,
        hook,
        shards,
        dist.get_rank(replicas),
        dist.get_world_size(replicas),
        scaler,
        part=f"shard_{groups[0].mesh_info.shard_mesh_rank}",
    )
    attached._follow(model)
    return attached
