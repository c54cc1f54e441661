"""From a process group of torch to its q7x2 backend."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from q7x2._core.backends import unwrapped_backend

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

# By default group: how many groups some of its ranks have made within. Their numbers begin beyond
# those that torch gives to others.
_made: WeakKeyDictionary[ProcessGroup, Counter[tuple[int, ...]]] = WeakKeyDictionary()
_FIRST_NUMBER = 1_000_000


def is_outside(group: object) -> bool:
    """Whether ``group`` is what ``new_group`` returns to a process that is not in the group."""
    import torch.distributed as dist

    return group is dist.GroupMember.NON_GROUP_MEMBER


def resolve_group(group: ProcessGroup | None) -> ProcessGroup:
    """``group``, or the default group if None.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: There is no default group, or this rank is not in ``group``.
    """
    import torch.distributed as dist

    found: object = dist.group.WORLD if group is None else group
    if found is None:
        raise ValueError("no default process group: call init_process_group first")
    if is_outside(found):
        raise ValueError("this process is not in the group")
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"group must be a torch.distributed.ProcessGroup, got {found!r}")
    return found


def backend_of(group: ProcessGroup | None, function: str) -> Any:
    """The q7x2 backend of ``group``, of the default group if None.

    Raises ValueError, in the name of ``function``, if it has none, and what :func:`resolve_group`
    raises.
    """
    import torch

    from q7x2._core.extension import load

    group = resolve_group(group)
    others = []
    for device in group._device_types:
        backend = unwrapped_backend(group, torch.device(device))
        if isinstance(backend, load().ProcessGroupQ7x2):
            return backend
        others.append(f"{device}:{backend.name()}")
    raise ValueError(
        f"{function} needs a group with a q7x2 backend, but this one has {','.join(others)!r}"
    )


def ranks_of(group: ProcessGroup) -> list[int]:
    """The global ranks of ``group``, as ``torch.distributed.new_group`` takes them.

    After ``shrink_group`` of the default group, global ranks count from 0 again, but torch 2.13
    goes on to name the old ones.
    """
    import torch.distributed as dist

    if group is dist.group.WORLD:
        return list(range(group.size()))
    return dist.get_process_group_ranks(group)


def group_like(group: ProcessGroup, device: torch.device) -> ProcessGroup:
    """A new group with the ranks, backend, options and timeout of ``group``; a collective call.

    Collectives that run beside those of ``group`` need a group of their own, in which their order
    does not depend on the others.

    Args:
        device: Whose backend tells the options and the timeout.
    """
    import torch.distributed as dist

    ranks = ranks_of(group)
    backend = unwrapped_backend(group, device)
    config = dist.get_backend_config(group)
    is_all_q7x2 = all(pair.endswith(":q7x2") for pair in config.split(","))
    # Ranks outside of a smaller group do not come here.
    is_smaller = len(ranks) < dist.get_world_size()
    with _counted_apart(tuple(ranks)) if is_smaller else nullcontext():
        made: ProcessGroup = dist.new_group(
            ranks,
            timeout=_timeout_of(backend),
            backend=config,
            pg_options=copy.copy(backend.options) if is_all_q7x2 else None,
            use_local_synchronization=is_smaller,
        )
    return made


@contextmanager
def _counted_apart(ranks: tuple[int, ...]) -> Iterator[None]:
    """Names the group that some ranks make within, so that all ranks agree about later names.

    Torch names a group by the number of groups that this rank has made. From 2.15 on it also counts
    those that the others have no part in, and the next group of all ranks would have two names.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    world, naming = dist.group.WORLD, distributed_c10d._world
    assert world is not None
    made, before = _made.setdefault(world, Counter()), naming.group_count
    naming.group_count = _FIRST_NUMBER + made[ranks]
    made[ranks] += 1
    try:
        yield
    finally:
        naming.group_count = before


def end_group(group: ProcessGroup, device: torch.device) -> None:
    """Destroy a group that :func:`group_like` made; a collective call.

    ``destroy_process_group`` asks the group's default backend, and warns if there is none: a group
    whose backends are named by device has none until it is told.
    """
    import torch.distributed as dist

    name = unwrapped_backend(group, device).name()
    group._set_default_backend(dist.Backend.backend_type_map[name])
    dist.destroy_process_group(group)


def _timeout_of(backend: Any) -> timedelta | None:
    """None: its default, since not every backend tells."""
    try:
        timeout: timedelta = backend.options._timeout
    except (AttributeError, RuntimeError):
        return None
    return timeout
