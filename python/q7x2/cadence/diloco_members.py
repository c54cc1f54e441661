"""What the ranks of a group must have in common, and how those behind catch up.

Every rank says what it trains and how far it is. All of them see the same list, so all know alike
who is furthest, and whose weights are to be replaced by those of that rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed import ProcessGroup

from q7x2.cadence.diloco_fragment import Fragment


@dataclass
class Position:
    """Where a rank is in its training; equal on all ranks between two steps.

    Attributes:
        step: Steps so far.
        interval: The current one, in steps.
        step_seconds: That of the facts from which the interval was decided.
        wire_seconds: The same.
    """

    step: int = 0
    interval: int = 0
    step_seconds: float = 0.0
    wire_seconds: float = 0.0


@dataclass
class Member:
    """What a rank says of itself when a group is made.

    Attributes:
        is_new: It has not trained with the others.
        versions: Those of its fragments.
        due: By fragment: the step at which the next outer gradient leaves, or None.
    """

    is_new: bool
    position: Position
    versions: list[int] = field(default_factory=list)
    due: list[int | None] = field(default_factory=list)

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Comes after that of members that are behind."""
        return not self.is_new, sum(self.versions), self.position.step


def catch_up(
    group: ProcessGroup, members: Sequence[Member], fragments: Sequence[Fragment]
) -> Position:
    """Broadcast what a rank lacks from the rank that is furthest, the first of equals.

    A rank that has joined takes all. A rank that missed an outer step takes the weights and the
    outer momentum of that fragment, and starts it with an empty residual: what it sent is part of
    them. Nothing is sent if all ranks have the same.

    Returns:
        The position that all ranks go on from.
    """
    source = max(range(len(members)), key=lambda rank: (members[rank].progress, -rank))
    leader, mine = members[source], members[group.rank()]
    for fragment in fragments:
        version = leader.versions[fragment.index]
        is_behind = [m.is_new or m.versions[fragment.index] != version for m in members]
        if any(is_behind):
            dist.broadcast(fragment.weights, group=group, group_src=source)
            if fragment.momentum is not None and not leader.is_new:
                dist.broadcast(fragment.momentum, group=group, group_src=source)
        if is_behind[group.rank()]:
            fragment.write_parameters(blend=0.0)
            if fragment.residual is not None:
                fragment.residual.zero_()
        fragment.contributes = leader.is_new or (fragment.contributes and not mine.is_new)
        fragment.version, fragment.due = version, leader.due[fragment.index]
    return leader.position
