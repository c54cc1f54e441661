"""A dense probe: does the validation loss fall faster without compression?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from q7x2._core.option_checks import check_positive, check_whole
from q7x2.policy.harm import Harm, Segments, estimate

_ORDERS = ((False, True, True, False), (True, False, False, True))  # dense segments, by turns
_FEWEST, _MOST = 3, 16  # probes that a verdict is based on
# Probabilities that a verdict needs.
_SURE_OF_HARM, _SURE_OF_NONE = 0.98, 0.99
_AGREES_ON_HARM, _AGREES_ON_NONE = 0.6, 0.7  # for the probes of each order alone


class Probe:
    """Alternates compressed and dense segments, and estimates the harm of compression.

    A probe is four segments of ``steps`` steps, each of which ends with a validation. It begins
    with a validation, too. The order is compressed, dense, dense, compressed; in every other probe
    it is the opposite one. The harm is estimated from all probes since :meth:`forget`, at most the
    last 16 ones; see :mod:`q7x2.policy.harm`. A curve that no fit describes makes one order
    overestimate the harm and the other one underestimate it, so both must agree on a verdict.

    Args:
        every: Validations between two probes.
        steps: Steps per segment.
        tolerance: The harm that is to be found.
    """

    def __init__(self, every: int, steps: int, tolerance: float) -> None:
        check_whole("probe_every", every, 1)
        check_whole("probe_steps", steps, 1)
        check_positive("tolerance", tolerance)
        self.every, self.steps, self.tolerance = every, steps, tolerance
        self.harm = 0.0  # the mean of the last estimate
        self._seen = 0  # validations since the last probe
        self._order = 0  # that of the current probe, or else of the next one
        self._ends: list[int] = []  # steps at which segments began; empty: no probe is running
        self._losses: list[float] = []  # at these steps
        self._finished: list[Segments] = []

    def is_dense(self, step: int) -> bool:
        """Whether the reduction ``step`` is to be dense."""
        return self._is_running and step >= self._ends[-1] and self._dense[len(self._ends) - 1]

    def ends_at(self, step: int) -> bool:
        """Whether a segment is over, so its validation is due."""
        return self._is_running and step >= self._ends[-1] + self.steps

    def observe(self, loss: float, step: int) -> int | None:
        """Return 1 to tighten, -1 to loosen, 0 to stay, and None if no probe has ended."""
        if not self._is_running:
            self._seen += 1
            if self._seen >= self.every:
                self._seen = 0
                self._ends, self._losses = [step], [loss]
            return None
        if not self.ends_at(step):
            return None
        self._ends.append(step)
        self._losses.append(loss)
        if len(self._ends) <= len(self._dense):
            return None
        steps = tuple(end - begin for begin, end in pairwise(self._ends))
        self._finished.append(Segments(steps, self._dense, tuple(self._losses)))
        del self._finished[:-_MOST]
        self._ends, self._losses, self._order = [], [], 1 - self._order
        return self._verdict()

    def _verdict(self) -> int:
        harm = self._estimated(self._finished)
        self.harm = harm.mean
        if len(self._finished) < _FEWEST:
            return 0
        by_order = [
            self._estimated([each for each in self._finished if each.dense == order]).beyond
            for order in _ORDERS
        ]
        if harm.beyond > _SURE_OF_HARM and min(by_order) > _AGREES_ON_HARM:
            return 1
        is_none = 1 - harm.beyond > _SURE_OF_NONE and harm.positive < _SURE_OF_HARM
        return -1 if is_none and max(by_order) < 1 - _AGREES_ON_NONE else 0

    def _estimated(self, probes: Sequence[Segments]) -> Harm:
        return estimate(probes, self.tolerance / 2)

    @property
    def _is_running(self) -> bool:
        return bool(self._ends)

    @property
    def _dense(self) -> tuple[bool, ...]:
        return _ORDERS[self._order]

    def cancel(self) -> None:
        """End a probe that is running without an estimate."""
        self._ends, self._losses, self._seen = [], [], 0

    def forget(self) -> None:
        """Begin anew: the level has changed."""
        self.cancel()
        self._finished = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "order": self._order,
            "ends": list(self._ends),
            "losses": list(self._losses),
            "finished": [
                [list(each.steps), list(each.dense), list(each.losses)] for each in self._finished
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._order = state["seen"], state["order"]
        self._ends, self._losses = list(state["ends"]), list(state["losses"])
        self._finished = [Segments(*map(tuple, each)) for each in state["finished"]]
