"""``plan_history``: which algorithms the calls of a group have taken, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def plan_history(group: ProcessGroup | None = None) -> list[dict[str, Any]]:
    """Return which algorithms the calls of a group have used, and why.

    >>> json.dump(q7x2.plan.plan_history(), file)  # for: q7x2 plan explain --history FILE

    It is not a collective call. All ranks that have made the same calls get the same answer, except
    for ``calls`` while calls are in progress.

    Args:
        group: The process group, with q7x2 as a backend. The default group if None.

    Returns:
        One dict per kind of call, with plain values:

        - ``collective``, ``root`` (-1 if there is none), ``codec`` ("" if there is none),
          ``direct`` (from device to device) and ``bytes``: the largest size of the kind. The
          smallest is half of that. ``bytes`` is None if the ranks' parts differ in size.
        - ``calls``: how many there were.
        - ``candidates``: what rank 0 proposed last, its own choice first. Each has ``algorithm``,
          ``edges``, ``slice_bytes``, ``window`` and ``predicted`` (seconds).
        - ``earlier_candidates``: the same of each earlier time. Rank 0 proposes before the first
          call, and again if links or hosts have become slower or faster.
        - ``rate_changes``: why rank 0 proposed again, in order. From number ``call`` on, calls take
          what is planned for the Fabric of epoch ``epoch``. ``reason`` is a sentence, such as
          "host b sends at 20 % of its measured rate" or "host b computes at 25 % of its measured
          rate".
        - ``events``: what was decided, in order. Calls from number ``call`` on (the first one is 0)
          took the algorithms in ``choices``, in turns if there are several. ``measured`` has what
          was known then, by algorithm: ``seconds`` on the slowest rank, for a call of ``bytes``
          bytes, and ``noise``, the standard error as a share of that.

        Groups of one rank, and kinds of calls that have not begun, are left out.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: The group has no q7x2 backend.
    """
    from q7x2._core.extension import load
    from q7x2._core.groups import backend_of

    history: list[dict[str, Any]] = load().plan_history(backend_of(group, "plan_history"))
    return history
