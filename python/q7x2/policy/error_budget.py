"""``ErrorBudget``: compress as strongly as the errors and the validation loss allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from q7x2._core.option_checks import check_codec, check_positive, check_strings, check_whole
from q7x2.policy.policy import (
    WHOLE,
    Decision,
    Facts,
    ParameterPolicy,
    Policy,
    PolicyEvent,
    Verdict,
    at_level,
    named,
)
from q7x2.policy.probe import Probe
from q7x2.policy.retry import Retry
from q7x2.policy.single import SingleLevels

_FIRST_SIGNS = 8  # estimates without harm before the first return to a level that was left


class ErrorBudget(Policy):
    """Moves between levels of compression, by relative errors and by validation losses.

    Three things decide about the level, each of them equal on all ranks:

    - Every ``measure_every`` reductions, the relative error of each gradient is measured: its
      residual relative to the gradient. A gradient beyond ``layer_error`` raises an alarm and is
      compressed one level less. From the errors measured at both levels it is known what the error
      would be at the stronger one. Once that is below 0.8 of ``layer_error`` in 4 measurements in a
      row, the gradient returns, level by level; after another alarm, in 8 in a row, and so on. If
      all gradients together are beyond ``total_error``, the common level is tightened.
    - Every ``probe_every`` validations, a dense probe alternates ``probe_steps`` compressed steps,
      twice as many uncompressed ones, and as many compressed ones, or the other way around; with a
      validation after every ``probe_steps``. The harm, the share by which compressed steps learn
      less, is estimated from the last 16 probes at this level, with curves fitted to the losses.
      From three probes on: if it is larger than half of ``tolerance`` with 98 % probability, the
      common level is tightened by one. If it is smaller with 99 % probability, and not certain to
      be above 0, the level is loosened by one. To a level that was left, it returns after 8 such
      estimates, then after 16, and so on.
    - A validation loss that is not finite, or too far above the lowest one, is a divergence:
      :meth:`Attached.observe` rolls the training back, and the common level is tightened by one.
      It is never loosened beyond that again. Too far is ``max_rise`` of what the loss had fallen
      since the first validation, or of the lowest loss if that is more.

    Args:
        levels: From the strongest compression to the mildest: codecs' names, or ranks of
            :class:`PowerSGD`. The last one may be ``"whole"``: uncompressed.
        start: The position of the first level.
        layer_error: The largest relative error of one gradient; None: any.
        total_error: The largest relative error of all gradients together; None: any.
        measure_every: Reductions between two measurements.
        max_rise: The largest rise of a validation loss, as a share; see above. Validate once before
            the first step: the rise is measured against how far the loss has fallen.
        probe_every: Validations between two dense probes; None: no probes.
        probe_steps: A quarter of the steps of a probe. More of them give a more certain estimate.
        tolerance: The harm that is to be found. Half of it is what the estimate is compared with.
        names: Patterns of the parameters that it decides about.

    Raises:
        ValueError: A level does not exist, or an option is out of its range.
    """

    def __init__(
        self,
        levels: Sequence[str | int],
        *,
        start: int = 0,
        layer_error: float | None = None,
        total_error: float | None = None,
        measure_every: int = 10,
        max_rise: float = 0.2,
        probe_every: int | None = None,
        probe_steps: int = 20,
        tolerance: float = 0.1,
        names: Sequence[str] = ("*",),
    ) -> None:
        super().__init__()
        self.levels = _checked(levels)
        check_whole("start", start, 0, len(self.levels) - 1)
        check_whole("measure_every", measure_every, 1)
        for name, value in (("layer_error", layer_error), ("total_error", total_error)):
            if value is not None:
                check_positive(name, value)
        check_positive("max_rise", max_rise)
        check_strings("names", names)
        self.layer_error, self.total_error = layer_error, total_error
        self.measure_every, self.max_rise, self.names = measure_every, max_rise, tuple(names)
        self._probe = None if probe_every is None else Probe(probe_every, probe_steps, tolerance)
        self._level = start
        self._loosest = 0  # the position beyond which no probe loosens
        self._since = -1  # the first reduction at the common level
        self._single = None if layer_error is None else SingleLevels(layer_error)
        self._retries = [Retry(_FIRST_SIGNS) for _ in self.levels]  # by level
        self._first = self._lowest = math.inf  # validation losses
        self._mine: list[str] = []

    @property
    def level(self) -> str | int:
        """The common level."""
        return self.levels[self._level]

    def bind(self, parameters: Mapping[str, int]) -> None:
        self._mine = named(parameters, self.names)

    def possible(self) -> Sequence[Decision]:
        levels = [*self.levels, *([] if self._probe is None else [WHOLE])]
        return [Decision(dict.fromkeys(self._mine, at_level(level))) for level in levels]

    def decide(self, step: int, facts: Facts | None) -> Decision:
        if facts is not None and facts.gradients and facts.is_finite:
            self._steer(facts)
        if self._probe is not None and self._probe.is_dense(step):
            return Decision({name: ParameterPolicy(whole=True) for name in self._mine})
        watches = self.layer_error is not None or self.total_error is not None
        return Decision(
            {name: at_level(self.levels[self._position(name)]) for name in self._mine},
            measures=watches and step % self.measure_every == 0,
        )

    def _position(self, name: str) -> int:
        above = 0 if self._single is None else self._single.above(name)
        return min(self._level + above, len(self.levels) - 1)

    def _steer(self, facts: Facts) -> None:
        if facts.step <= self._since:  # residuals of the level before
            return
        mine = {name: facts.gradients[name] for name in self._mine if name in facts.gradients}
        step = facts.step + 1
        for name, gradient in mine.items():
            single = self._single
            if single is None or gradient.gradient <= 0 or facts.step <= single.since(name):
                continue
            error, position = gradient.relative_error, self._position(name)
            if error > single.limit:
                self._note(step, "alarm", name, error)
                if position == len(self.levels) - 1:
                    continue
                single.raise_level(name, error, step, position)
            elif not single.returns(name, error, step, position):
                continue
            self._note(step, "level", name, error, str(self.levels[self._position(name)]))
        total = Facts(facts.step, gradients=mine).relative_error
        if self.total_error is not None and total > self.total_error:
            self._note(step, "alarm", "", total)
            self._tighten(step, total)

    def _tighten(self, step: int, value: float) -> None:
        self._retries[self._level].left()
        self._move(step, +1, value)

    def _loosen(self, step: int, value: float) -> None:
        if self._level > self._loosest and self._retries[self._level - 1].sign(True):
            self._move(step, -1, value)

    def _move(self, step: int, by: int, value: float) -> None:
        """Moves the common level, as far as there are levels."""
        level = min(max(self._level + by, self._loosest), len(self.levels) - 1)
        if level != self._level:
            self._level, self._since = level, step
            self._note(step, "level", "", value, str(self.level))
            if self._probe is not None:
                self._probe.forget()

    def _note(
        self, step: int, kind: str, parameter: str = "", value: float = 0.0, level: str = ""
    ) -> None:
        self.history.append(PolicyEvent(step, kind, parameter, value, level))

    # ---- validation losses

    def observe(self, validation_loss: float, step: int) -> Verdict:
        self._note(step, "validation", "", validation_loss, str(self.level))
        if not math.isfinite(validation_loss) or validation_loss > self._limit():
            self._note(step, "divergence", "", validation_loss, str(self.level))
            return Verdict.DIVERGED
        if math.isinf(self._first):
            self._first = validation_loss
        self._lowest = min(self._lowest, validation_loss)
        if self._probe is not None:
            verdict = self._probe.observe(validation_loss, step)
            if verdict is not None:
                self._note(step, "probe", "", self._probe.harm, str(self.level))
                if verdict > 0:
                    self._tighten(step, self._probe.harm)
                elif verdict < 0:
                    self._loosen(step, self._probe.harm)
        return Verdict.GOOD

    def _limit(self) -> float:
        """The largest validation loss that is no divergence."""
        if math.isinf(self._lowest):
            return math.inf
        return self._lowest + self.max_rise * max(self._first - self._lowest, abs(self._lowest))

    def validation_due(self, step: int) -> bool:
        return self._probe is not None and self._probe.ends_at(step)

    def roll_back(self, state: Mapping[str, Any]) -> None:
        level, retries = self._level, self._retries
        step = self.history[-1].step if self.history else 0
        super().roll_back(state)
        self._level, self._retries = level, retries
        self._loosest = min(level + 1, len(self.levels) - 1)
        self._note(step, "roll_back", "", state["lowest"], str(self.level))
        self._move(step, +1, 0.0)
        self._since = -1  # the next reductions have lower numbers again
        if self._probe is not None:
            self._probe.forget()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "levels": list(self.levels),
            "level": self._level,
            "loosest": self._loosest,
            "since": self._since,
            "single": {} if self._single is None else self._single.state_dict(),
            "retries": [asdict(retry) for retry in self._retries],
            "first": self._first,
            "lowest": self._lowest,
            "probe": {} if self._probe is None else self._probe.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._check_levels(state, self.levels)
        if state["level"] >= len(self.levels):
            raise ValueError(
                f"the state has level {state['level']}, but there are {len(self.levels)} levels"
            )
        self._level, self._loosest = state["level"], state["loosest"]
        self._since = state["since"]
        if self._single is not None:
            self._single.load_state_dict(state["single"])
        self._retries = [Retry(**retry) for retry in state["retries"]]
        self._first, self._lowest = state["first"], state["lowest"]
        if self._probe is not None and state["probe"]:
            self._probe.load_state_dict(state["probe"])


def _checked(levels: Sequence[str | int]) -> list[str | int]:
    """The levels; ValueError for one that does not exist."""
    if isinstance(levels, str) or len(levels) < 2:
        raise ValueError(f"levels must be at least two, from strong to mild, got {levels!r}")
    for i, level in enumerate(levels):
        if level == WHOLE:
            if i != len(levels) - 1:
                raise ValueError("levels: 'whole' must be the last one, the mildest")
        elif isinstance(level, str):
            check_codec("levels", level)
        else:
            check_whole("levels", level, 1)
    if len({type(level) for level in levels if level != WHOLE}) > 1:
        raise ValueError(f"levels must be codecs or ranks, not both, got {levels!r}")
    return list(levels)
