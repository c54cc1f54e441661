"""Options that all steps by a quorum have, checked when they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from q7x2._core.option_checks import check_positive, check_whole, duration_of
from q7x2.late.quorum_messages import MOST_RANKS, Timing


def checked(
    need: int | None,
    grace: float,
    takeover: float,
    timeout: timedelta | float | None,
    backend: Any,
) -> tuple[int, Timing]:
    """How many contributions close a step, and when; see :class:`QuorumSGD`.

    Args:
        backend: The q7x2 backend of the group.

    Raises:
        ValueError: An option is out of range, or the group has too few or too many ranks.
    """
    size = backend.size()
    if not 3 <= size <= MOST_RANKS:
        raise ValueError(f"a quorum needs 3 to {MOST_RANKS} ranks, got {size}")
    need = size - 1 if need is None else need
    check_whole("need", need, size // 2 + 1, size)
    if isinstance(grace, bool) or not isinstance(grace, (int, float)) or grace < 0:
        raise ValueError(f"grace must not be negative, got {grace!r}")
    check_positive("takeover", takeover)
    timeout = duration_of("timeout", backend.options._timeout if timeout is None else timeout)
    return need, Timing(grace, takeover, timeout.total_seconds())
