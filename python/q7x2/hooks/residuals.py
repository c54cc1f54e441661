"""What codecs hold back: residuals beside gradients, step by step.

Policies have a hook measure both (docs/policy.md). ``Q7X2_MEASURE_RESIDUALS=k`` measures every k-th
reduction without one. What is measured goes to ``q7x2.stats()`` and to the ledger.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from q7x2._core import observers
from q7x2._core.runner import GradientSums, Row
from q7x2.policy.policy import Facts, facts_of

if TYPE_CHECKING:
    from q7x2._C import HookRunner
    from q7x2._core.runner import HookTensors, StepFacts

VARIABLE = "Q7X2_MEASURE_RESIDUALS"

_numbers = itertools.count()
_hooks: weakref.WeakValueDictionary[int, MeasuredRunner] = weakref.WeakValueDictionary()


def measure_every() -> int:
    """N: every N-th reduction is measured; 0: only what policies ask for.

    Raises:
        ValueError: ``Q7X2_MEASURE_RESIDUALS`` is no whole number of at least 0.
    """
    text = os.environ.get(VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE}={text}: expected a whole number of at least 0")
    return int(text)


class MeasuredRunner:
    """A HookRunner whose measurements are remembered.

    Args:
        runner: The HookRunner.
        name: The kind of hook.
        parameters: Names, in the order of the runner.
        is_first: This is rank 0 of the hook's group. All ranks know the same; it writes the ledger.
        number: The hook's number in this process; None: a new one.
    """

    def __init__(
        self,
        runner: HookRunner,
        name: str,
        parameters: Sequence[str],
        is_first: bool,
        number: int | None = None,
    ) -> None:
        self.name = name
        self.number = next(_numbers) if number is None else number
        self.last: Facts | None = None  # that were measured
        self._runner, self._is_first = runner, is_first
        self._parameters = list(parameters)
        self._every = measure_every()
        self._told: tuple[Sequence[Row], bool, Sequence[str]] = ([], False, [])  # by policies
        self._measures = False
        self._next_step = 0
        self._sample()
        _hooks[self.number] = self

    @property
    def step(self) -> int:
        return self._runner.step

    def register(self, reducer: Any) -> None:
        self._runner.register(reducer)

    def expect_fewer_buckets(self) -> None:
        self._runner.expect_fewer_buckets()

    def detach(self) -> None:
        self._runner.detach()

    def rescale(self, factor: float) -> None:
        self._runner.rescale(factor)

    def save(self) -> tuple[HookTensors, HookTensors, int]:
        return self._runner.save()

    def stats(self) -> dict[str, Any]:
        return self._runner.stats()

    def trace(self, enabled: bool) -> None:
        self._runner.trace(enabled)

    def take_events(self) -> list[dict[str, Any]]:
        return self._runner.take_events()

    def moved_to(self, runner: HookRunner, is_first: bool) -> MeasuredRunner:
        """The same hook with another HookRunner, which knows nothing of policies yet."""
        return MeasuredRunner(runner, self.name, self._parameters, is_first, self.number)

    @property
    def samples(self) -> bool:
        """Whether steps are measured that no policy asks for."""
        return self._every > 0

    def decide(self, rows: Sequence[Row], measures: bool, candidates: Sequence[str]) -> None:
        measures_too = measures or self._is_sampled()
        self._runner.decide(rows, measures_too, candidates if measures else [])
        self._told, self._measures = (rows, measures, candidates), measures_too

    def load(self, shared: HookTensors, local: HookTensors, step: int) -> None:
        self._runner.load(shared, local, step)
        self._next_step = step
        self._sample()

    def take_facts(self) -> StepFacts | None:
        """As the runner's. Policies see only what they have asked for: sampling changes nothing."""
        raw = self._runner.take_facts()
        if raw is None:
            return None
        if raw["gradients"] and raw["is_finite"]:
            self._note(raw)
        if not self._told[1]:
            raw["gradients"] = {}
        self._next_step = raw["step"] + 1
        self._sample()
        return raw

    def _is_sampled(self) -> bool:
        return self._every > 0 and self._next_step % self._every == 0

    def _sample(self) -> None:
        """Tell the runner if the next step is to be measured, or is not."""
        if (self._told[1] or self._is_sampled()) != self._measures:
            self.decide(*self._told)

    def _note(self, raw: StepFacts) -> None:
        gradients = {
            self._parameters[number]: facts_of(GradientSums(*sums))
            for number, sums in sorted(raw["gradients"].items())
        }
        self.last = Facts(raw["step"], gradients=gradients)
        if observers.residuals_measured and self._is_first:
            policies = dict(zip(self._parameters, self._told[0], strict=False))
            rows = [
                (
                    self.number,
                    self.name,
                    raw["step"],
                    name,
                    one.gradient,
                    one.residual,
                    _text(policies.get(name, Row(False, False, ""))),
                )
                for name, one in gradients.items()
            ]
            for take in observers.residuals_measured:
                take(rows)


def _text(row: Row) -> str:
    return "whole" if row.whole else "skip" if row.skip else row.compressor


def of_process() -> list[dict[str, Any]]:
    """For ``q7x2.stats()``: the last measurement of each hook that has one."""
    return [
        {
            "hook": number,
            "name": hook.name,
            "step": hook.last.step,
            "relative_error": hook.last.relative_error,
            "parameters": {
                name: {
                    "gradient": one.gradient,
                    "residual": one.residual,
                    "relative_error": one.relative_error,
                }
                for name, one in hook.last.gradients.items()
            },
        }
        for number, hook in sorted(_hooks.items())
        if hook.last is not None
    ]


observers.hook_facts.append(of_process)
