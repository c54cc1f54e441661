"""``ProcessGroup``: a process group outside of ``init_process_group``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from q7x2._backend import create_backend
from q7x2._core.option_checks import duration_of

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

    from q7x2._C import Options, ProcessGroupQ7x2


def ProcessGroup(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta | float = timedelta(minutes=30),
    *,
    name: str = "q7x2.ProcessGroup",
    options: Options | None = None,
) -> dist.ProcessGroup:
    """Make a process group with q7x2 as its backend, without ``init_process_group``.

    It is for libraries that make and replace groups themselves, such as torchft. The group serves
    tensors on the CPU, on CUDA devices, and on registered accelerators. All ``size`` ranks must
    call this function; it returns when all of them have. A process may hold any number of such
    groups, with or without a default group.

    >>> store = dist.TCPStore(host, port, is_master=rank == 0)
    >>> group = q7x2.ProcessGroup(dist.PrefixStore("epoch 1", store), rank, size, timeout=60)
    >>> group.allreduce([tensor]).wait()
    >>> group.shutdown()

    Args:
        store: Where the ranks find each other. Each group needs a prefix of its own in it
            (``torch.distributed.PrefixStore``), also a group that replaces an earlier
            one.
        rank: This process's rank in the group, from 0 to ``size - 1``.
        size: The number of ranks.
        timeout: How long this call and each collective may take; a float means seconds.
        name: What error messages call the group; the same on all ranks.
        options: The same as ``pg_options`` of ``init_process_group``; they are copied.

    Returns:
        A ``torch.distributed.ProcessGroup``. It is not registered with ``torch.distributed``.
        Functions such as ``torch.distributed.all_reduce(tensor, group=group)`` and
        ``DistributedDataParallel(model, process_group=group)`` take it, but those that translate
        global ranks or group names need a registered group. ``group.shutdown()`` leaves it;
        ``group.abort()`` ends it on all ranks.

    Raises:
        ValueError: ``rank``, ``size`` or ``timeout`` is out of range.
        TypeError: ``options`` is not a :class:`q7x2.Options`.
        torch.distributed.DistBackendError: Another rank did not come within ``timeout``. The
            message names it.
    """
    timeout = duration_of("timeout", timeout)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if not 0 <= rank < size:
        raise ValueError(f"rank must be from 0 to {size - 1}, got {rank}")

    from torch._C._distributed_c10d import _DistributedBackendOptions

    given = _DistributedBackendOptions()
    given.store = store
    given.group_rank = rank
    given.group_size = size
    given.timeout = timeout
    given.group_id = name
    given.global_ranks_in_group = []
    return group_around(create_backend(given, options), store, name)


def group_around(backend: ProcessGroupQ7x2, store: Store, name: str) -> dist.ProcessGroup:
    """Return a process group that serves tensors of all devices by ``backend``."""
    import torch
    import torch.distributed as dist

    from q7x2.groups.accelerators import device_types

    group = dist.ProcessGroup(store, backend.rank(), backend.size())
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(kind)
    for device in device_types():
        group._register_backend(torch.device(device), kind, backend)
    group._set_group_name(name)  # type: ignore[arg-type, unused-ignore]
    group._set_group_desc("q7x2.ProcessGroup")
    return group
