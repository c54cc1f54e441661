"""The backends of a process group of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


def unwrapped_backend(group: ProcessGroup, device: torch.device) -> Any:
    """The backend of ``group`` for tensors of ``device``, of whatever kind.

    ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` puts a checking group around each backend.
    """
    backend: Any = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def is_on_q7x2(group: ProcessGroup, device: torch.device) -> bool:
    """Whether tensors of ``device`` travel through q7x2 in ``group``."""
    name: str = unwrapped_backend(group, device).name()
    return name == "q7x2"
