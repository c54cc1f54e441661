"""``monitored_barrier``: torch's own accepts Gloo groups only."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait until all ranks of ``group`` are here, and name those that are not.

    Takes the arguments of :func:`torch.distributed.monitored_barrier` and means the same by them.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.
        timeout: How long to wait for the others; a float means seconds. The group's timeout if
            None.
        wait_all_ranks: Wait out the timeout and name every missing rank, instead of failing at the
            first one.

    Raises:
        RuntimeError: A rank did not arrive in time. The message names it.
        ValueError: The group has no q7x2 backend.

    A process outside of ``group`` gets a warning and returns at once, as with torch's.
    """
    import torch.distributed as dist

    if group is not None and not isinstance(group, dist.ProcessGroup):  # NON_GROUP_MEMBER
        warnings.warn("monitored_barrier: this process is not in the group", stacklevel=2)
        return
    if isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    _q7x2_backend(group).monitored_barrier(wait_all_ranks=wait_all_ranks, **options)


def _q7x2_backend(group: ProcessGroup | None) -> Any:
    import torch
    import torch.distributed as dist

    from q7x2._extension import load

    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError("no default process group: call init_process_group first")
    for device in group._device_types:
        backend = group._get_backend(torch.device(device))
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking group around each backend.
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, load().ProcessGroupQ7x2):
            return backend
    raise ValueError(
        f"monitored_barrier needs a group with a q7x2 backend, but this one has "
        f"{dist.get_backend_config(group)!r}"
    )
