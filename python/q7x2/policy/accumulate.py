"""``Accumulate``: how many backwards lie between two reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from q7x2._core.renamed import renamed
from q7x2.policy.cadence import CadenceFacts, interval_of
from q7x2.policy.policy import Decision, Facts, Policy


@renamed(every="reduce_every")
class Accumulate(Policy):
    """Reduce gradients in every k-th backward; the others only add to them on their rank.

    >>> policy = q7x2.policy.Accumulate(q7x2.policy.FollowBandwidth(share=0.2, most=8))

    Args:
        reduce_every: The number of backwards per reduction, or a function of :class:`CadenceFacts`:
            :class:`FollowBandwidth`, :class:`PostLocal`, :class:`Tighten`. ``step`` is then the
            number of reductions, ``wire_seconds`` the time in which messages of one reduction were
            under way, and ``step_seconds`` that of one backward without them. They are measured in
            two of ten reductions.

    Raises:
        ValueError: ``reduce_every`` is less than 1.
    """

    def __init__(self, reduce_every: Any) -> None:
        super().__init__()
        self.reduce_every = reduce_every
        self._interval = interval_of("reduce_every", reduce_every)
        self._cadence = 1
        self._computing = self._wire = 0.0  # seconds of one backward, and of a reduction

    def decide(self, step: int, facts: Facts | None) -> Decision:
        if facts is not None and facts.step_seconds > 0:
            self._wire = facts.wire_seconds
            self._computing = max(facts.step_seconds - self._wire, 0.0) / self._cadence
        self._cadence = max(1, self._interval(CadenceFacts(step, self._computing, self._wire)))
        return Decision(
            cadence=self._cadence, measures=callable(self.reduce_every) and step % 10 < 2
        )

    def state_dict(self) -> dict[str, Any]:
        times = {"computing": self._computing, "wire": self._wire}
        return super().state_dict() | {"cadence": self._cadence, **times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._cadence = state["cadence"]
        self._computing, self._wire = state["computing"], state["wire"]
