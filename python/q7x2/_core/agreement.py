"""What all ranks that make an object together must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed import ProcessGroup

from q7x2._core.exchange import gather
from q7x2._core.json_values import dumps, loads


def check_agreement(
    made: str,
    options: Mapping[str, Any],
    group: ProcessGroup,
    problem: Exception | None = None,
    shared: Any = None,
    shared_kind: Any = None,
) -> Any:
    """Compare ``options`` over the ranks, and return rank 0's ``shared``; a collective call.

    Args:
        made: What all ranks make, for error messages.
        options: By name; the names are equal on all ranks.
        problem: What is wrong with the options of this rank, so that the others hear of it.
        shared: What rank 0 chooses for all, of type ``shared_kind``.
        shared_kind: See :mod:`q7x2._core.json_values`; the same on all ranks.

    Raises:
        ValueError: Another rank has a problem, or a rank has another value than rank 0.
    """
    mine = {name: str(value) for name, value in options.items()}
    said = "" if problem is None else f"{type(problem).__name__}: {problem}"
    # A rank with a problem shares nothing, and need not know what the others share.
    told = None if shared_kind is None or problem is not None else dumps(shared, shared_kind)
    everybody = gather((mine, told, said), tuple[dict[str, str], str | None, str], group)
    if problem is not None:
        return shared
    for rank, (_, _, said) in enumerate(everybody):
        if said:
            raise ValueError(f"rank {rank} of the group cannot make its {made}: {said}")
    first, told, _ = everybody[0]
    for rank, (its, _, _) in enumerate(everybody):
        for name, value in its.items():
            if value != first[name]:
                raise ValueError(
                    f"all ranks must make the same {made}, but rank 0 of the group has "
                    f"{name}={first[name]} and rank {rank} has {name}={value}"
                )
    return shared if shared_kind is None else loads(told, shared_kind)
