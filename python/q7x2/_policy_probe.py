"""A dense probe: does the validation loss fall faster without compression?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from q7x2._option_checks import check_positive, check_whole


class Probe:
    """Compares the speeds of learning of a few compressed steps and of as many dense ones.

    A probe begins with a validation, goes on with ``steps`` compressed steps and a validation, and
    ends with ``steps`` dense steps and a validation. A speed is what the loss falls per step.

    Args:
        every: Validations between two probes.
        steps: Of each half.
        tolerance: The share of the dense speed by which the compressed one may be lower.
    """

    def __init__(self, every: int, steps: int, tolerance: float) -> None:
        check_whole("probe_every", every, 1)
        check_whole("probe_steps", steps, 1)
        check_positive("tolerance", tolerance)
        self.every, self.steps, self.tolerance = every, steps, tolerance
        self.advantage = 0.0  # of the last probe: compressed speed less dense speed
        self._seen = 0  # validations since the last probe
        self._half = ""  # "compressed" or "dense"; empty: no probe is running
        self._begin = 0  # the first step of this half
        self._loss = 0.0  # at that step
        self._speed = 0.0  # of the compressed half

    def is_dense(self, step: int) -> bool:
        return self._half == "dense" and step >= self._begin

    def ends_at(self, step: int) -> bool:
        """A half is over: its validation is due."""
        return bool(self._half) and step >= self._begin + self.steps

    def observe(self, loss: float, step: int) -> int | None:
        """1: tighten; -1: loosen; 0: stay; None: no probe has ended."""
        if not self._half:
            self._seen += 1
            if self._seen >= self.every:
                self._seen = 0
                self._enter("compressed", loss, step)
            return None
        if not self.ends_at(step):
            return None
        speed = (self._loss - loss) / (step - self._begin)
        if self._half == "compressed":
            self._speed = speed
            self._enter("dense", loss, step)
            return None
        self._half = ""
        self.advantage = self._speed - speed
        if self.advantage >= 0:
            return -1
        return 1 if self.advantage < -self.tolerance * abs(speed) else 0

    def cancel(self) -> None:
        """The training goes on from an earlier step."""
        self._half, self._seen = "", 0

    def _enter(self, half: str, loss: float, step: int) -> None:
        self._half, self._loss, self._begin = half, loss, step

    def snapshot(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "half": self._half,
            "begin": self._begin,
            "loss": self._loss,
            "speed": self._speed,
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._seen, self._half = snapshot["seen"], snapshot["half"]
        self._begin, self._loss = snapshot["begin"], snapshot["loss"]
        self._speed = snapshot["speed"]
