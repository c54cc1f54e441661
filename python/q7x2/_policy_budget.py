"""``ErrorBudget``: compress as strongly as the errors and the validation loss allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from q7x2._option_checks import check_codec, check_positive, check_strings, check_whole
from q7x2._policy import Decision, Facts, Policy, PolicyEvent, Treatment, Verdict, named
from q7x2._policy_probe import Probe

WHOLE = "whole"  # the level at which nothing is compressed


class ErrorBudget(Policy):
    """Moves between levels of compression, by relative errors and by validation losses.

    Three things decide about the level, each of them equal on all ranks:

    - Every ``measure_every`` reductions, the relative error of each gradient is measured: its
      residual relative to the gradient. A gradient beyond ``layer_error`` raises an alarm and is
      compressed one level less. Once it is below a quarter of that, it returns level by level. If
      all gradients together are beyond ``total_error``, the common level is tightened.
    - Every ``probe_every`` validations, a dense probe compares how fast the validation loss falls
      in ``probe_steps`` compressed steps, and in as many uncompressed ones after them. If it falls
      more slowly by more than ``tolerance`` of the dense speed, the common level is tightened by
      one. If it does not fall more slowly, the level is loosened by one.
    - A validation loss that is not finite, or too far above the lowest one, is a divergence:
      :meth:`Attached.observe` rolls the training back, and the common level is tightened by one.
      It is never loosened beyond that again. Too far is ``max_rise`` of what the loss had fallen
      since the first validation, or of the lowest loss if that is more.

    Args:
        levels: From the strongest compressor to the mildest: codecs' names, or ranks of
            :class:`PowerSGD`. The last one may be ``"whole"``: uncompressed.
        start: The position of the first level.
        layer_error: The largest relative error of one gradient; None: any.
        total_error: The largest relative error of all gradients together; None: any.
        measure_every: Reductions between two measurements.
        max_rise: See above. Validate once before the first step, so that it is known how far the
            loss has fallen.
        probe_every: Validations between two dense probes; None: no probes.
        probe_steps: Compressed steps of a probe, and as many dense ones.
        tolerance: See above.
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
        self._tighter: dict[str, int] = {}  # levels above the common one, by name
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
        return [Decision(dict.fromkeys(self._mine, _at(level))) for level in levels]

    def decide(self, step: int, facts: Facts | None) -> Decision:
        if facts is not None and facts.gradients and facts.is_finite:
            self._steer(facts)
        if self._probe is not None and self._probe.is_dense(step):
            return Decision({name: Treatment(whole=True) for name in self._mine})
        watches = self.layer_error is not None or self.total_error is not None
        return Decision(
            {name: _at(self.levels[self._position(name)]) for name in self._mine},
            measures=watches and step % self.measure_every == 0,
        )

    def _position(self, name: str) -> int:
        return min(self._level + self._tighter.get(name, 0), len(self.levels) - 1)

    def _steer(self, facts: Facts) -> None:
        mine = {name: facts.gradients[name] for name in self._mine if name in facts.gradients}
        step = facts.step + 1
        for name, gradient in mine.items():
            if self.layer_error is None or gradient.gradient <= 0:
                continue
            error, above = gradient.relative_error, self._tighter.get(name, 0)
            if error > self.layer_error:
                self._note(step, "alarm", name, error)
                if self._position(name) < len(self.levels) - 1:
                    self._move_one(step, name, above + 1, error)
            elif above > 0 and error < self.layer_error / 4:
                self._move_one(step, name, above - 1, error)
        total = Facts(facts.step, gradients=mine).relative_error
        if self.total_error is not None and total > self.total_error:
            self._note(step, "alarm", "", total)
            self._move(step, +1, total)

    def _move_one(self, step: int, name: str, above: int, error: float) -> None:
        self._tighter[name] = above
        self._note(step, "level", name, error, str(self.levels[self._position(name)]))

    def _move(self, step: int, by: int, value: float) -> None:
        """Moves the common level, as far as there are levels."""
        level = min(max(self._level + by, self._loosest), len(self.levels) - 1)
        if level != self._level:
            self._level = level
            self._note(step, "level", "", value, str(self.level))

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
            move = self._probe.observe(validation_loss, step)
            if move is not None:
                self._note(step, "probe", "", self._probe.advantage, str(self.level))
                self._move(step, move, self._probe.advantage)
        return Verdict.GOOD

    def _limit(self) -> float:
        """The largest validation loss that is no divergence."""
        if math.isinf(self._lowest):
            return math.inf
        return self._lowest + self.max_rise * max(self._first - self._lowest, abs(self._lowest))

    def validation_due(self, step: int) -> bool:
        return self._probe is not None and self._probe.ends_at(step)

    def roll_back(self, snapshot: Mapping[str, Any]) -> None:
        level, step = self._level, self.history[-1].step if self.history else 0
        super().roll_back(snapshot)
        self._level = level
        self._loosest = min(level + 1, len(self.levels) - 1)
        self._note(step, "roll_back", "", snapshot["lowest"], str(self.level))
        self._move(step, +1, 0.0)
        if self._probe is not None:
            self._probe.cancel()

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {
            "level": self._level,
            "loosest": self._loosest,
            "tighter": dict(self._tighter),
            "first": self._first,
            "lowest": self._lowest,
            "probe": {} if self._probe is None else self._probe.snapshot(),
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        super().load(snapshot)
        if snapshot["level"] >= len(self.levels):
            raise ValueError(
                f"the state has level {snapshot['level']}, but there are {len(self.levels)} levels"
            )
        self._level, self._loosest = snapshot["level"], snapshot["loosest"]
        self._tighter = dict(snapshot["tighter"])
        self._first, self._lowest = snapshot["first"], snapshot["lowest"]
        if self._probe is not None and snapshot["probe"]:
            self._probe.load(snapshot["probe"])


def _at(level: str | int) -> Treatment:
    return Treatment(whole=True) if level == WHOLE else Treatment(level)


def _checked(levels: Sequence[str | int]) -> list[str | int]:
    """The levels with codecs' full names; ValueError for one that does not exist."""
    from q7x2._hook_codecs import measured_best

    if isinstance(levels, str) or len(levels) < 2:
        raise ValueError(f"levels must be at least two, from strong to mild, got {levels!r}")
    checked: list[str | int] = []
    for i, level in enumerate(levels):
        if level == WHOLE:
            if i != len(levels) - 1:
                raise ValueError("levels: 'whole' must be the last one, the mildest")
        elif isinstance(level, str):
            check_codec("levels", level)
        else:
            check_whole("levels", level, 1)
        checked.append(measured_best(level) if isinstance(level, str) else level)
    if len({type(level) for level in checked if level != WHOLE}) > 1:
        raise ValueError(f"levels must be codecs or ranks, not both, got {levels!r}")
    return checked
