"""``attach``: a communication hook for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._core.renamed import renamed
from q7x2.fsdp.options import Sharded
from q7x2.hooks.attached import Attached
from q7x2.hooks.residuals import MeasuredRunner
from q7x2.hooks.runner import (
    check_has_no_hook,
    make_runner,
    part_of,
    place_in,
    reduced_parameters,
    register,
)
from q7x2.policy.driver import PolicyDriver, check_same_policies, checked_policies

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.hooks.options import HookOptions
    from q7x2.policy.policy import Policy


@renamed(overlap="q7x2.overlap.attach(ddp, optimizer)", replicas="replica_group")
def attach(
    ddp: DistributedDataParallel | FSDPModule,
    hook: HookOptions | Sharded,
    *,
    scaler: Any = None,
    threads: int = 1,
    replica_group: ProcessGroup | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    policy: Policy | Sequence[Policy] | None = None,
) -> Attached:
    """Let a hook in C++ reduce the gradients of ``ddp``, beside its backward and without the GIL.

    >>> ddp = DistributedDataParallel(model)
    >>> hook = q7x2.attach(ddp, q7x2.PowerSGD(rank=4))

    All ranks of the model's process group call it, with the same hook. Gradients travel through the
    hook from the next backward on, so it may also be called after some steps. A
    DistributedDataParallel takes one hook, and keeps it.
    It works on any backend: the group may be of Gloo, or of NCCL, which is not tested.

    Args:
        ddp: The model; or one that ``fully_shard`` (FSDP2) shards over a part of the ranks, a mesh
            of one dimension, while the ranks of ``replica_group`` hold the same shards.
        hook: The algorithm and its options: :class:`PowerSGD`, :class:`Quantize`, :class:`TopK`,
            :class:`OneBit`, :class:`SignSGD`, :class:`Allreduce`, or several of them in
            :class:`Compose`.
        scaler: The ``torch.amp.GradScaler`` of the training, so that residuals follow the loss
            scale. Steps that it skips leave no trace in the hook's state, with or without this.
        threads: The number of threads of the hook's tensor operations. It must be the same on all
            ranks, because another number may round differently.
        replica_group: The ranks over which the hook averages gradients that FSDP2 has reduced to
            shards. Only for models of FSDP2.
        optimizer: Residuals follow the learning rate of its first parameter group. A residual
            comes from gradients of an earlier rate; it is multiplied by the ratio of that rate to
            the present one before it is sent (Zheng et al., 2019). Only for a
            DistributedDataParallel, and for hooks that send gradients, without ``clip_norm``.
            None: residuals are sent as they are.
        policy: Who decides how each gradient travels, and how often (docs/policy.md). With several,
            later ones replace what earlier ones decided.

    Returns:
        The hook at work: its figures and its state.

    Raises:
        RuntimeError: The model has a hook already.
        TypeError: ``ddp`` is neither a DistributedDataParallel nor an FSDPModule, or ``hook``,
            ``policy`` or ``scaler`` not what they should be.
        ValueError: ``replica_group`` is missing or not allowed; FSDP does all reductions itself;
            ranks attach different hooks or policies; parameters are complex, which only
            :class:`Allreduce` takes, or were frozen after DDP had been made; or the hook cannot do
            what a policy decides.
    """
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if isinstance(hook, Sharded) and not isinstance(ddp, FSDPModule):
        raise TypeError(f"Sharded is for an FSDPModule, got {type(ddp).__name__}")
    if isinstance(hook, type) or not (hasattr(hook, "factory") or isinstance(hook, Sharded)):
        raise TypeError(f"attach needs a hook, such as q7x2.PowerSGD(rank=4), got {hook!r}")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if optimizer is not None:
        _check_follows_rate(ddp, hook)
    policies = checked_policies(policy)
    if isinstance(ddp, FSDPModule):
        from q7x2.fsdp.attached import attach_sharded

        return attach_sharded(ddp, hook, replica_group, scaler, threads, policies)
    assert not isinstance(hook, Sharded)
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"attach needs a DistributedDataParallel, got {type(ddp).__name__}")
    if replica_group is not None:
        raise ValueError(
            "replica_group is for FSDP2; a DistributedDataParallel has its process group"
        )
    group = ddp.process_group
    if group not in dist.distributed_c10d._world.pg_map:
        raise ValueError(
            "attach needs a group that torch.distributed knows, made by init_process_group or "
            "new_group"
        )
    check_has_no_hook(ddp)
    parameters = reduced_parameters(ddp)
    rank, world_size = place_in(group)
    runner = MeasuredRunner(
        make_runner(hook, group, parameters, threads=threads, may_skip=scaler is not None),
        type(hook).__name__,
        [name for name, _ in parameters],
        is_first=rank == 0,
    )
    check_same_policies(policies, group)
    driver = PolicyDriver(policies, parameters) if policies else None
    if driver is not None:
        driver.check(runner)
        driver.start(runner, 0)
    register(ddp, runner, hook)
    attached = Attached(
        runner,
        hook,
        parameters,
        rank=rank,
        world_size=world_size,
        scaler=scaler,
        part=part_of(group),
        threads=threads,
    )
    attached._follow(ddp, optimizer)
    if driver is not None:
        attached._obey(ddp, driver)
    elif runner.samples:
        attached._sample(ddp)
    return attached


def _check_follows_rate(ddp: Any, hook: HookOptions | Sharded) -> None:
    """Raises ValueError unless the hook keeps residuals of gradients, and nothing else."""
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.hooks.base import FullPrecision

    keeps = (
        isinstance(hook, FullPrecision)
        and hook._sends_gradients
        and getattr(hook, "use_error_feedback", True)
        and not getattr(hook, "clip_norm", None)
    )
    if not keeps or not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            "optimizer is for a DistributedDataParallel and a hook that keeps residuals of "
            f"gradients, without clip_norm; got {hook!r}"
        )
