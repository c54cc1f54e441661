"""``attach``: a communication hook for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from q7x2._core.renamed import renamed
from q7x2.fsdp.model_kinds import Kind, described, kind_of, source_of
from q7x2.fsdp.options import Sharded
from q7x2.hooks.attach_source import attach_source
from q7x2.hooks.attached import Attached
from q7x2.policy.driver import checked_policies

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
    ddp: DistributedDataParallel | FSDPModule | torch.nn.Module,
    hook: HookOptions | Sharded,
    *,
    scaler: Any = None,
    threads: int = 1,
    group: ProcessGroup | None = None,
    bucket_cap_mb: float | None = None,
    replica_group: ProcessGroup | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    policy: Policy | Sequence[Policy] | None = None,
) -> Attached:
    """Let a hook in C++ reduce the gradients of ``ddp``, beside its backward and without the GIL.

    >>> ddp = DistributedDataParallel(model)
    >>> hook = q7x2.attach(ddp, q7x2.PowerSGD(rank=4))

    All ranks of the model's process group call it, with the same hook. Gradients travel through the
    hook from the next backward on, so it may also be called after some steps. A
    DistributedDataParallel or a plain module takes one hook, and keeps it.
    It works on any backend: the group may be of Gloo, or of NCCL, which is not tested.

    Args:
        ddp: The model: a DistributedDataParallel; what ``replicate()`` returns, the one of
            ``torch.distributed._composable`` or the one of FSDP2; a model that ``fully_shard``
            (FSDP2) shards, over a mesh of one dimension, or over one of two, whose first dimension
            are the replicas that the hook averages (HSDP); or any other module, with ``group``.
            docs/hooks_models.md says what each supports.
        hook: The algorithm and its options: :class:`PowerSGD`, :class:`Quantize`, :class:`TopK`,
            :class:`OneBit`, :class:`SignSGD`, :class:`Allreduce`, or several of them in
            :class:`Compose`.
        scaler: The ``torch.amp.GradScaler`` of the training, so that residuals follow the loss
            scale. Steps that it skips leave no trace in the hook's state, with or without this.
        threads: The number of threads of the hook's tensor operations. It must be the same on all
            ranks, because another number may round differently.
        group: The ranks that train a plain module. They begin with the parameters and buffers of
            its first rank. Only for a module that nothing else reduces.
        bucket_cap_mb: The MiB of gradients with which a bucket of a plain module is full; None: 25.
            Other models have options of their own for it.
        replica_group: The ranks over which the hook averages gradients that FSDP2 has reduced to
            shards. Only for models that FSDP2 shards over a mesh of one dimension.
        optimizer: Residuals follow the learning rate of its first parameter group. A residual
            comes from gradients of an earlier rate; it is multiplied by the ratio of that rate to
            the present one before it is sent (Zheng et al., 2019). Not for
            shards, and only for hooks that send gradients, without ``clip_norm``.
            None: residuals are sent as they are.
        policy: Who decides how each gradient travels, and how often (docs/policy.md). With several,
            later ones replace what earlier ones decided.

    Returns:
        The hook at work: its figures and its state.

    Raises:
        RuntimeError: The model has a hook already.
        TypeError: ``ddp`` is a plain module without ``group``, or no module; or ``hook``,
            ``policy`` or ``scaler`` are not what they should be.
        ValueError: ``group`` or ``replica_group`` is missing or not allowed; ranks attach different
            hooks or policies; parameters are complex, which only :class:`Allreduce` takes, or were
            frozen after DDP had been made; or the hook cannot do what a policy decides.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if isinstance(hook, type) or not (hasattr(hook, "factory") or isinstance(hook, Sharded)):
        raise TypeError(f"attach needs a hook, such as q7x2.PowerSGD(rank=4), got {hook!r}")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    kind = kind_of(ddp)
    if isinstance(hook, Sharded) and kind is not Kind.SHARDED:
        raise TypeError(f"Sharded is for an FSDPModule, got {described(ddp, kind)}")
    if optimizer is not None:
        _check_follows_rate(kind, hook)
    policies = checked_policies(policy)
    _check_groups(kind, ddp, group, replica_group, bucket_cap_mb)
    if kind is Kind.SHARDED:
        from q7x2.fsdp.attached import attach_sharded

        return attach_sharded(ddp, hook, replica_group, scaler, threads, policies)
    assert not isinstance(hook, Sharded)
    return attach_source(
        source_of(ddp, kind, group, bucket_cap_mb),
        hook,
        scaler=scaler,
        threads=threads,
        optimizer=optimizer,
        policies=policies,
    )


def _check_groups(
    kind: Kind,
    model: Any,
    group: ProcessGroup | None,
    replica_group: ProcessGroup | None,
    bucket_cap_mb: float | None,
) -> None:
    """Raises unless a plain module, and nothing else, has a group and buckets."""
    if kind is Kind.PLAIN and group is None:
        raise TypeError(
            "attach needs a DistributedDataParallel, an FSDPModule, a model of replicate(), or a "
            f"module and its group=..., got {described(model, kind)}"
        )
    if kind is not Kind.PLAIN and group is not None:
        raise ValueError(
            f"group is for a plain module: {described(model, kind)} has its process group"
        )
    if kind is not Kind.PLAIN and bucket_cap_mb is not None:
        raise ValueError(
            f"bucket_cap_mb is for a plain module: {described(model, kind)} has buckets of its own"
        )
    if kind is not Kind.SHARDED and replica_group is not None:
        raise ValueError(
            f"replica_group is for FSDP2's shards; {described(model, kind)} has its process group"
        )


def _check_follows_rate(kind: Kind, hook: HookOptions | Sharded) -> None:
    """Raises ValueError unless the hook keeps residuals of gradients, and nothing else."""
    from q7x2.hooks.base import FullPrecision

    keeps = (
        isinstance(hook, FullPrecision)
        and hook._sends_gradients
        and getattr(hook, "use_error_feedback", True)
        and not getattr(hook, "clip_norm", None)
    )
    if not keeps or kind is Kind.SHARDED:
        raise ValueError(
            "optimizer is for a model that every rank holds whole and a hook that keeps residuals "
            f"of gradients, without clip_norm; got {hook!r}"
        )
