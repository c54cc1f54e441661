"""``reconfigure``: a group of processes that know each other's handles, without a store."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import TYPE_CHECKING

from q7x2._core.option_checks import duration_of

if TYPE_CHECKING:
    import torch.distributed as dist

    from q7x2._C import Options

_DEFAULT_TIMEOUT = timedelta(minutes=30)


def reconfigure_handle(group: dist.ProcessGroup | None = None) -> str:
    """Return how this process can be reached, for :func:`reconfigure`.

    A handle is a text that any means may carry: a store, a file, a message. It is valid until the
    process ends, whatever groups the process joins or leaves, unless an error says that the process
    no longer receives messages from its host: then it has another one. Whoever holds it can talk to
    the process: treat it as a secret.

    Args:
        group: A q7x2 group. The handle carries this process's rank in it, which decides the order
            of unordered handles. None: the handle carries no rank.

    Returns:
        The handle.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: ``group`` has no q7x2 backend.
    """
    from q7x2._core.extension import load
    from q7x2._core.groups import backend_of

    backend = None if group is None else backend_of(group, "reconfigure_handle")
    handle: str = load().reconfigure_handle(backend)
    return handle


def reconfigure_handles(group: dist.ProcessGroup | None = None) -> list[str]:
    """Return the handles of all ranks of ``group``, by rank, without communication.

    It also works if the group has failed.

    Args:
        group: A q7x2 group; the default group if None.

    Returns:
        One handle per rank, as :func:`reconfigure` takes them.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: The group has no q7x2 backend.
    """
    from q7x2._core.groups import backend_of

    handles: list[str] = backend_of(group, "reconfigure_handles").handles()
    return handles


def reconfigure(
    uuid: int | str,
    handles: Sequence[str] | AbstractSet[str],
    *,
    timeout: timedelta | float | None = None,
    group: dist.ProcessGroup | None = None,
    options: Options | None = None,
) -> dist.ProcessGroup:
    """Make a group of the processes that ``handles`` name: fewer, more, or others than before.

    All these processes must call it with the same handles and the same uuid, at any time within the
    timeout. No store is needed, so it works if rank 0 died together with its store.

    >>> handles = q7x2.reconfigure_handles(group)  # of a group that has failed: rank 1 died
    >>> group = q7x2.reconfigure(1, [handles[0], handles[2]], timeout=60, group=group)

    Args:
        uuid: A name for this call, which none of the processes has used before. A call that failed
            has used its uuid: try again with another one.
        handles: Who is in the group. In a sequence, the rank is the position. In a set, ranks are
            given out by the ranks that the handles carry, and behind them those without a rank.
        timeout: How long this call and each collective may take; a float means seconds. None: the
            timeout of ``group``, or 30 minutes.
        group: The q7x2 group that the result replaces. Its collectives in progress are awaited
            first. The result takes its options, and its Fabric if all members were in it. If the
            call succeeds, this process leaves it. If the call fails, the group is as before.
        options: The same as ``pg_options`` of ``init_process_group``; None: those of ``group``.

    Returns:
        A group like that of :func:`q7x2.ProcessGroup`, not registered with ``torch.distributed``.

    Raises:
        TypeError: ``handles`` is neither a sequence nor a set, or ``group`` is no process group.
        ValueError: ``timeout`` is not positive, or ``group`` has no q7x2 backend.
        RuntimeError: The uuid was used before, here or on another member; a handle is not valid;
            this process is not among the handles, or a process is twice.
        torch.distributed.DistBackendError: A member did not come within the timeout, or its process
            has ended, or it was given other handles. The message names it.
    """
    from torch._C._distributed_c10d import HashStore

    from q7x2._core.extension import load
    from q7x2._core.groups import backend_of
    from q7x2.groups.process_group import group_around

    old = None if group is None else backend_of(group, "reconfigure")
    if timeout is None:
        timeout = _DEFAULT_TIMEOUT if old is None else old.options._timeout
    timeout = duration_of("timeout", timeout)
    if isinstance(handles, str) or not isinstance(handles, (Sequence, AbstractSet)):
        got = "one text" if isinstance(handles, str) else repr(handles)
        raise TypeError(f"handles must be a sequence or a set of handles, got {got}")
    store = HashStore()  # a process group of torch has one; nothing is ever put into it
    backend = load().reconfigure(
        store, str(uuid), list(handles), not isinstance(handles, AbstractSet), timeout, old, options
    )
    if group is not None:
        group.shutdown()
    return group_around(backend, store, f"reconfigured {uuid}")
