"""What all ranks that make an object together must agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup

from q7x2._core.exchange import gather
from q7x2._core.json_values import dumps, loads


class _Said(NamedTuple):
    """What a rank says of what it makes.

    Attributes:
        options: Each as ``name=value``.
        shared: What it chooses for all.
        problem: Why it cannot make it; empty: it can.
    """

    options: list[str]
    shared: str | None
    problem: str


def check_agreement(
    made: str,
    options: Mapping[str, Any],
    group: ProcessGroup | Sequence[ProcessGroup],
    problem: Exception | None = None,
    *,
    shared: Any = None,
    shared_kind: Any = None,
    device: torch.device | None = None,
) -> Any:
    """Compare ``options`` over the ranks, and return rank 0's ``shared``; a collective call.

    Args:
        made: What all ranks make, for error messages.
        options: By name, in the same order on all ranks.
        group: Several groups connect all ranks together: of a mesh, one per dimension.
        problem: What is wrong with the options of this rank, so that the others hear of it.
        shared: What rank 0 chooses for all, of type ``shared_kind``.
        shared_kind: See :mod:`q7x2._core.json_values`; the same on all ranks.
        device: As :func:`q7x2._core.exchange.gather` has it.

    Raises:
        ValueError: Another rank has a problem, or a rank has another value than rank 0.
    """
    # A rank with a problem shares nothing, and need not know what the others share.
    mine = _Said(
        [f"{name}={value}" for name, value in options.items()],
        None if shared_kind is None or problem is not None else dumps(shared, shared_kind),
        "" if problem is None else f"{type(problem).__name__}: {problem}",
    )
    everybody = [mine]
    for each in [group] if isinstance(group, ProcessGroup) else group:
        rows = gather(everybody, list[_Said], each, device)
        everybody = [said for row in rows for said in row]
    if problem is not None:
        return shared
    for rank, its in enumerate(everybody):
        if its.problem:
            raise ValueError(f"rank {rank} of the group cannot make its {made}: {its.problem}")
    first = everybody[0]
    for rank, its in enumerate(everybody):
        for a, b in zip_longest(first.options, its.options, fillvalue="nothing more"):
            if a != b:
                raise ValueError(
                    f"all ranks must make the same {made}, but rank 0 has {a} where rank {rank} of "
                    f"the group has {b}"
                )
    return shared if shared_kind is None else loads(first.shared or "", shared_kind)
