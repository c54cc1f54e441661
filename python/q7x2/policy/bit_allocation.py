"""``BitAllocation``: each gradient gets its own codec, by what each codec would lose of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from q7x2._core.option_checks import check_codec, check_strings, check_whole
from q7x2._core.renamed import renamed
from q7x2.policy.policy import Decision, Facts, ParameterPolicy, Policy, PolicyEvent, named


@renamed(every="decide_every")
class BitAllocation(Policy):
    """Choose a codec per gradient: the fewest bytes of all gradients for no more error.

    Every ``decide_every`` reductions, all ranks measure what each codec would lose of each
    gradient. The relative squared errors of the choice are together no more than those of ``codec``
    alone (L-GreCo, Markov et al., 2024).

    Args:
        codec: The codec whose error is not to be exceeded.
        choices: Further codecs to choose from.
        decide_every: Reductions between two choices.
        names: Patterns of the parameters that it decides about.

    Raises:
        ValueError: A codec does not exist, or there is no choice.
    """

    def __init__(
        self,
        codec: str,
        choices: Sequence[str],
        *,
        decide_every: int = 200,
        names: Sequence[str] = ("*",),
    ) -> None:
        super().__init__()
        check_strings("choices", choices)
        check_strings("names", names)
        for name in (codec, *choices):
            check_codec("choices" if name in choices else "codec", name)
        check_whole("decide_every", decide_every, 1)
        if not choices:
            raise ValueError("choices must have at least one codec")
        self.codecs = [codec, *choices]
        self.decide_every = decide_every
        self.names = tuple(names)
        self._chosen: dict[str, int] = {}
        self._chosen_in = -1  # the last period with a choice
        self._numels: dict[str, int] = {}

    def bind(self, parameters: Mapping[str, int]) -> None:
        self._numels = {name: parameters[name] for name in named(parameters, self.names)}

    def possible(self) -> Sequence[Decision]:
        return [
            Decision(dict.fromkeys(self._numels, ParameterPolicy(codec)), candidates=self.codecs)
            for codec in self.codecs
        ]

    def decide(self, step: int, facts: Facts | None) -> Decision:
        if facts is not None and self._has_all(facts):
            self._choose(facts)
        return Decision(
            {name: ParameterPolicy(self.codecs[i]) for name, i in self._chosen.items()},
            measures=self._is_due(step),
            candidates=self.codecs if self._is_due(step) else (),
        )

    def _is_due(self, step: int) -> bool:
        return step // self.decide_every != self._chosen_in

    def _has_all(self, facts: Facts) -> bool:
        """The facts are what the last decision asked for."""
        return (
            self._is_due(facts.step)
            and facts.is_finite
            and any(set(self.codecs) <= set(g.errors) for g in facts.gradients.values())
        )

    def _choose(self, facts: Facts) -> None:
        from q7x2._core.extension import load

        bits = [load().Codec(codec).bits for codec in self.codecs]
        measured = {n: facts.gradients[n] for n in self._numels if n in facts.gradients}
        costs = [
            (
                gradient.gradient**2 + gradient.residual**2,
                [
                    (bits[i] / 8 * self._numels[name], gradient.errors[codec])
                    for i, codec in enumerate(self.codecs)
                ],
            )
            for name, gradient in measured.items()
        ]
        for name, choice in zip(measured, load().choose_codecs(costs), strict=True):
            if choice is None or self._chosen.get(name) == choice:
                continue
            self._chosen[name] = choice
            error = measured[name].errors[self.codecs[choice]]
            self.history.append(
                PolicyEvent(facts.step + 1, "level", name, error, self.codecs[choice])
            )
        self._chosen_in = facts.step // self.decide_every

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "levels": list(self.codecs),
            "chosen": dict(self._chosen),
            "chosen_in": self._chosen_in,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._check_levels(state, self.codecs)
        self._chosen = dict(state["chosen"])
        self._chosen_in = state["chosen_in"]
