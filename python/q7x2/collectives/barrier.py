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

    The arguments are those of :func:`torch.distributed.monitored_barrier`.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.
        timeout: How long to wait for the others; a float means seconds. The group's timeout if
            None.
        wait_all_ranks: Wait until the timeout and name every missing rank, instead of only the
            first one.

    Raises:
        RuntimeError: A rank did not arrive in time. The message names it.
        TypeError: ``group`` is no process group.
        ValueError: The group has no q7x2 backend.

    A process outside of ``group`` gets a warning and returns at once, as with torch's.
    """
    from q7x2._core.groups import backend_of, is_outside

    if is_outside(group):
        warnings.warn("monitored_barrier: this process is not in the group", stacklevel=2)
        return
    if isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    backend = backend_of(group, "monitored_barrier")
    backend.monitored_barrier(wait_all_ranks=wait_all_ranks, **options)
