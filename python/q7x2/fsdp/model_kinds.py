"""The kinds of models that a hook can be attached to, and what hands their gradients over."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from q7x2._core.option_checks import check_positive

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2.hooks.sources import GradientSource


class Kind(enum.Enum):
    """What a model is made with; the value is its name in docs/hooks_models.md."""

    DDP = "DistributedDataParallel"
    COMPOSABLE = "replicate() on DDP"
    REPLICATED = "replicate() on FSDP2"
    SHARDED = "fully_shard"
    PLAIN = "plain module"


def unwrapped(model: Any) -> Any:
    """What ``torch.compile`` has wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)


def kind_of(model: Any) -> Kind:
    """The kind of a model.

    Raises:
        TypeError: It is no module.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.fsdp.replica_mesh import only_replicates
    from q7x2.hooks.composable import is_composable

    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"attach needs a DistributedDataParallel or another module, got {type(model).__name__}"
        )
    inner: Any = unwrapped(model)
    if isinstance(inner, FSDPModule):
        return Kind.REPLICATED if only_replicates(unwrapped(model)) else Kind.SHARDED
    if is_composable(inner):
        return Kind.COMPOSABLE
    if isinstance(inner, DistributedDataParallel):
        return Kind.DDP
    return Kind.PLAIN


def described(model: Any, kind: Kind) -> str:
    """The model in an error."""
    name = type(model).__name__
    return name if kind in (Kind.DDP, Kind.PLAIN) else f"{name} ({kind.value})"


def source_of(
    model: Any, kind: Kind, group: ProcessGroup | None, bucket_cap_mb: float | None
) -> GradientSource:
    """What hands the gradients of a model over, if it is not sharded; raises as ``attach``."""
    from q7x2.fsdp.replicated import ReplicatedSource
    from q7x2.hooks.composable import ComposableSource
    from q7x2.hooks.module_reducer import ModuleReducer
    from q7x2.hooks.sources import DDPSource

    if kind is Kind.PLAIN:
        assert group is not None
        cap = 25.0 if bucket_cap_mb is None else bucket_cap_mb
        check_positive("bucket_cap_mb", cap)
        return ModuleReducer(model, group, cap)
    inner = unwrapped(model)
    if kind is Kind.DDP:
        return DDPSource(inner)
    return ComposableSource(inner) if kind is Kind.COMPOSABLE else ReplicatedSource(inner)
