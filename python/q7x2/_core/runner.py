"""``Runner``: a hook at work, as `Attached` and policies see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

if TYPE_CHECKING:
    import torch

    HookTensors = dict[str, dict[str, torch.Tensor]]  # by kind, then by name


class Row(NamedTuple):
    """How the gradient of one parameter travels.

    Attributes:
        whole: It is not compressed.
        skip: It is not sent.
        compressor: A codec or a rank; empty: what the hook's options say.
    """

    whole: bool
    skip: bool
    compressor: str


class GradientSums(NamedTuple):
    """What a hook has measured of one gradient, summed over the ranks.

    Attributes:
        gradient: Squares of the norms of the gradients.
        residual: Squares of the norms of the residuals.
        uses: Ranks that used the parameter.
        errors: The squared error of each candidate.
    """

    gradient: float
    residual: float
    uses: float
    errors: Sequence[float]


class StepFacts(TypedDict):
    """What a hook tells of a step, equal on all ranks.

    ``gradients`` has the values of :class:`GradientSums` for each number of a measured parameter.
    """

    step: int
    is_finite: bool
    step_seconds: float
    wire_seconds: float
    gradients: dict[int, tuple[float, float, float, Sequence[float]]]


class Steered(Protocol):
    """What policies steer."""

    def decide(self, rows: Sequence[Row], measures: bool, candidates: Sequence[str], /) -> None:
        """Take what holds from the next step on, equal on all ranks.

        Raises:
            ValueError: The hook cannot do it.
        """

    def take_facts(self) -> StepFacts | None:
        """Return those of the last step; None if no step has ended since the last call."""


class Runner(Steered, Protocol):
    """A hook at work on one model: C++'s HookRunner, and what does the same for FSDP2."""

    @property
    def step(self) -> int:
        """The number of reductions so far."""

    def detach(self) -> None:
        """Reduce nothing from now on, and drop the state."""

    def rescale(self, factor: float, /) -> None:
        """Multiply the residuals."""

    def save(self) -> tuple[HookTensors, HookTensors, int]:
        """Copies: what all ranks share, what this rank has for itself, the number of steps."""

    def load(self, shared: HookTensors, local: HookTensors, step: int, /) -> None:
        """Go on from what :meth:`save` gave."""

    def stats(self) -> dict[str, Any]:
        """The figures of :class:`q7x2.hooks.HookStats`, by name."""

    def trace(self, enabled: bool, /) -> None:
        """Record events from now on, or stop."""

    def take_events(self) -> list[dict[str, Any]]:
        """Return the fields of :class:`q7x2.hooks.HookEvent` of what was recorded, once."""
