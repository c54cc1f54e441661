"""``stats``: counters of the operations of this process."""

from __future__ import annotations

from typing import Any

from q7x2._core import observers


def stats(*, reset: bool = False) -> dict[str, Any]:
    """Return counters of all operations of this process, per group and kind of operation.

    >>> for group in q7x2.stats()["groups"]:
    ...     for kind, counted in group["operations"].items():
    ...         print(group["name"], kind, counted["count"], counted["seconds"]["waited"])

    It is not a collective call. The flight recorder keeps the counters, so there are none if
    ``Q7X2_FLIGHT_RECORDER`` is 0. Counters of a group that was closed are kept as long as the
    recorder holds operations of it. ``destroy_process_group`` keeps them, too: those of the last
    32 groups, until ``reset``.

    Args:
        reset: Set all counters to zero after this call.

    Returns:
        A dict of plain values: ``now_ns`` (nanoseconds since 1970), ``since_ns`` (the time of the
        last reset, None if there was none), and ``groups``, a list, the oldest first. It is empty
        if this process has had no q7x2 group. ``hooks`` is a list of the hooks whose residuals were
        measured (``Q7X2_MEASURE_RESIDUALS``, or a policy). Each hook has its number ``hook``, the
        ``name`` of its class, the last ``step`` that was measured, ``relative_error``, and
        ``parameters``: by name ``gradient`` and ``residual``, which are L2 norms over all ranks,
        and their ratio ``relative_error``. Each group has ``name``, ``identity`` (equal on all
        ranks, unique), ``rank``, ``ranks``, ``open``, and ``operations``, which has one dict per
        kind that was called: ``all_reduce`` and the other collectives, ``send``, ``receive``, and
        ``preparation`` for what q7x2 exchanges before a call. A dict has:

        - ``count`` and ``failed``: operations that succeeded, and that failed. All other values are
          of those that succeeded.
        - ``input_bytes``, ``output_bytes``: the tensors.
        - ``sent_network_bytes``, ``received_network_bytes``, ``sent_memory_bytes``,
          ``received_memory_bytes``: messages without headers, through UCX and through the group's
          shared memory.
        - ``seconds``, summed: ``queued`` (from the submission to the start), ``took`` (from the
          start to the end), ``waited`` (the part of it in which no thread computed), and the
          time of the threads in ``select``, ``encode``, ``decode``, ``reduce`` and ``copy``.
          Threads that work at once add up.
        - ``took``: quantiles ``p50``, ``p90``, ``p99`` of one operation in seconds, right within a
          sixteenth, and the ``longest`` one.
        - ``predicted``: the sum of what the planner expected, ``seconds``, and what the same
          operations ``took``.
    """
    from q7x2._core.extension import load

    counted: dict[str, Any] = load().ledger_stats(reset)
    hooks = [facts for of_process in observers.hook_facts for facts in of_process()]
    return counted | {"hooks": hooks}
