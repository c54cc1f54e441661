"""``Accordion``: compress less where gradients change, and more where they have settled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from q7x2._core.option_checks import check_codec, check_positive, check_strings, check_whole
from q7x2._core.renamed import renamed
from q7x2.policy.policy import Decision, Facts, Policy, PolicyEvent, at_level, named


@renamed(every="decide_every")
class Accordion(Policy):
    """A gradient is compressed mildly while its norm changes, and strongly once it has settled.

    Every ``decide_every`` reductions, all ranks measure the norm of each gradient together with its
    residual. A gradient whose norm has changed by at least ``change`` since the last measurement
    is in a critical regime (Agarwal et al., Accordion, 2020).

    >>> q7x2.attach(ddp, q7x2.PowerSGD(rank=8), policy=q7x2.policy.Accordion(8, 2))
    >>> policy = q7x2.policy.Accordion("int8", "hadamard+int4:g=128")
    >>> q7x2.attach(ddp, q7x2.Quantize("int8"), policy=policy)

    Args:
        mild: For critical regimes: a codec's name, or a rank of :class:`PowerSGD`, at most that of
            the hook.
        strong: For the others, of the same kind. A rank that becomes lower keeps the first columns
            of its basis; one that becomes higher adds random columns.
        change: The share of its norm by which a gradient must have changed.
        decide_every: Reductions between two measurements.
        names: Patterns of the parameters that it decides about.

    Raises:
        ValueError: A codec does not exist, or an option is out of its range.
        TypeError: One of ``mild`` and ``strong`` is a codec and the other one a rank.
    """

    def __init__(
        self,
        mild: str | int,
        strong: str | int,
        *,
        change: float = 0.5,
        decide_every: int = 200,
        names: Sequence[str] = ("*",),
    ) -> None:
        super().__init__()
        self.mild, self.strong = _level("mild", mild), _level("strong", strong)
        if isinstance(mild, str) != isinstance(strong, str):
            raise TypeError(
                f"mild and strong must be two codecs or two ranks, got {mild!r} and {strong!r}"
            )
        check_positive("change", change)
        check_whole("decide_every", decide_every, 1)
        check_strings("names", names)
        self.change, self.decide_every, self.names = change, decide_every, tuple(names)
        self._settled: dict[str, bool] = {}
        self._norms: dict[str, float] = {}  # those of the last measurement
        self._measured_in = -1  # the last period with a measurement
        self._mine: list[str] = []

    def bind(self, parameters: Mapping[str, int]) -> None:
        self._mine = named(parameters, self.names)

    def possible(self) -> Sequence[Decision]:
        return [
            Decision(dict.fromkeys(self._mine, at_level(level)))
            for level in (self.mild, self.strong)
        ]

    def decide(self, step: int, facts: Facts | None) -> Decision:
        if facts is not None and facts.gradients and facts.is_finite and self._is_due(facts.step):
            self._choose(facts)
        return Decision(
            {
                name: at_level(self.strong if settled else self.mild)
                for name, settled in self._settled.items()
            },
            measures=self._is_due(step),
        )

    def _is_due(self, step: int) -> bool:
        return step // self.decide_every != self._measured_in

    def _choose(self, facts: Facts) -> None:
        for name in self._mine:
            if name not in facts.gradients:
                continue
            norm = math.hypot(facts.gradients[name].gradient, facts.gradients[name].residual)
            last = self._norms.get(name)
            settled = last is not None and abs(norm - last) < self.change * last
            if self._settled.get(name) != settled:
                level = str(self.strong if settled else self.mild)
                self.history.append(PolicyEvent(facts.step + 1, "level", name, norm, level))
            self._settled[name] = settled
            self._norms[name] = norm
        self._measured_in = facts.step // self.decide_every

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "levels": [self.mild, self.strong],
            "settled": dict(self._settled),
            "norms": dict(self._norms),
            "measured_in": self._measured_in,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._check_levels(state, [self.mild, self.strong])
        self._settled = dict(state["settled"])
        self._norms = dict(state["norms"])
        self._measured_in = state["measured_in"]


def _level(name: str, level: str | int) -> str | int:
    if isinstance(level, str):
        check_codec(name, level)
    else:
        check_whole(name, level, 1)
    return level
