"""What a policy is: who decides how each gradient travels, and how often ranks synchronise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from q7x2._core.renamed import renamed, renamed_attributes
from q7x2.policy.cadence import describe

if TYPE_CHECKING:
    from typing_extensions import Self

    from q7x2._core.runner import GradientSums

WHOLE = "whole"  # the level at which nothing is compressed


class DivergenceError(RuntimeError):
    """A training diverges again and again, although policies have rolled it back."""


@dataclass(frozen=True)
class GradientFacts:
    """What the ranks measured of one gradient. All ranks have the same facts, bit for bit.

    Attributes:
        gradient: The root of the sum over the ranks of squared L2 norms of gradients, each divided
            by the number of ranks.
        residual: The same root for the residuals before the step, which the last step held back.
        uses: Ranks on which the gradient was not all zeros.
        errors: The squared error that each candidate would make, summed over the ranks.
    """

    gradient: float
    residual: float
    uses: int
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def relative_error(self) -> float:
        """The residual, relative to the gradient; 0 if both are 0."""
        if self.gradient > 0:
            return self.residual / self.gradient
        return math.inf if self.residual > 0 else 0.0


def facts_of(sums: GradientSums, candidates: Sequence[str] | None = None) -> GradientFacts:
    """The facts in a hook's sums.

    Args:
        candidates: The codecs whose errors are in ``sums``. None: errors are left out.
    """
    errors = {} if candidates is None else dict(zip(candidates, sums.errors, strict=True))
    return GradientFacts(sums.gradient**0.5, sums.residual**0.5, round(sums.uses), errors)


@dataclass(frozen=True)
class Facts:
    """What the ranks know of the last reduction. All ranks have the same facts, bit for bit.

    Attributes:
        step: The number of reductions before it.
        is_finite: No gradient had Inf or NaN.
        step_seconds: Seconds from the reduction before it to this one, a mean over the ranks; 0 if
            they are unknown.
        wire_seconds: The part of ``step_seconds`` in which messages were under way.
        gradients: What was measured of each gradient that the hook compresses, by the name of the
            parameter. Empty if no policy had asked for it.
    """

    step: int
    is_finite: bool = True
    step_seconds: float = 0.0
    wire_seconds: float = 0.0
    gradients: Mapping[str, GradientFacts] = field(default_factory=dict)

    @property
    def relative_error(self) -> float:
        """The residuals of all gradients, relative to all gradients."""
        gradient = math.hypot(*(g.gradient for g in self.gradients.values()))
        residual = math.hypot(*(g.residual for g in self.gradients.values()))
        return GradientFacts(gradient, residual, 0).relative_error


@renamed(compressor="codec or rank")
@dataclass(frozen=True)
class ParameterPolicy:
    """How the gradient of one parameter travels. It holds for those that the hook compresses.

    Args:
        codec: A codec's name, for hooks that send through a codec. None: what the hook's options
            say.
        whole: Do not compress it. What its residual holds goes along.
        skip: Do not send it: it is added to its residual, and the mean is zero. Only hooks with
            residuals of gradients can do that.
        rank: A rank, for :class:`PowerSGD`, at most that of the hook. None: what its options say.

    Raises:
        ValueError: Two of these contradict each other.
    """

    codec: str | None = None
    whole: bool = False
    skip: bool = False
    rank: int | None = field(default=None, kw_only=True)

    @property
    def level(self) -> str:
        """The codec or the rank as text; empty if it says neither."""
        return self.codec or ("" if self.rank is None else str(self.rank))

    def __post_init__(self) -> None:
        if self.codec is not None and self.rank is not None:
            raise ValueError(f"expected a codec or a rank, got {self.codec!r} and {self.rank!r}")
        if self.whole and self.skip:
            raise ValueError("a gradient cannot travel whole and be skipped in the same step")


def at_level(level: str | int) -> ParameterPolicy:
    """The policy that a level stands for: a codec's name, a rank, or :data:`WHOLE`."""
    if isinstance(level, int):
        return ParameterPolicy(rank=level)
    return ParameterPolicy(whole=True) if level == WHOLE else ParameterPolicy(level)


@dataclass(frozen=True)
class Decision:
    """What a policy wants from the next reduction on, until it decides otherwise.

    Args:
        parameters: Parameter policies by the names of parameters. Parameters that are left out are
            treated as the policies before this one decided, or as the hook's options say.
        cadence: The number of backwards per reduction; see :meth:`Attached.accumulate`.
        measures: The next reduction is to be measured: its facts have ``gradients``.
        candidates: Codecs whose errors are to be measured too.
    """

    parameters: Mapping[str, ParameterPolicy] = field(default_factory=dict)
    cadence: int = 1
    measures: bool = False
    candidates: Sequence[str] = ()


class Verdict(Enum):
    """What a policy says of a validation.

    Attributes:
        GOOD: The training goes on.
        DIVERGED: The training has diverged, and is rolled back if :meth:`Attached.guard` allows it.
    """

    GOOD = "good"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class PolicyEvent:
    """Something that a policy did, or noticed.

    Attributes:
        step: The number of reductions before it.
        kind: For example ``"validation"``, ``"level"``, ``"alarm"`` or ``"roll_back"``.
        parameter: The name of the parameter; empty: all of them.
        value: A loss or a relative error, as ``kind`` says.
        level: The codec or the rank that holds from then on; empty if the event is about none.
    """

    step: int
    kind: str
    parameter: str = ""
    value: float = 0.0
    level: str = ""


_OLD_NAMES = {"snapshot": "state_dict", "load": "load_state_dict"}


@renamed_attributes(**_OLD_NAMES)
class Policy:
    """Decides how gradients travel. Subclasses override what they need.

    All ranks make the same policies and get the same facts and losses, so they decide alike. A
    policy must depend on nothing else: no clock, and no random numbers that ranks do not share.

    Attributes:
        history: The :class:`PolicyEvent` of all that it did and noticed, oldest first.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for old, new in _OLD_NAMES.items():
            if old in vars(cls):
                raise TypeError(f"{cls.__name__} overrides {old!r}: a Policy calls it {new!r}")

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._made_with = args, options
        return made

    def __init__(self) -> None:
        self.history: list[PolicyEvent] = []

    def __repr__(self) -> str:
        """What it was made with: :func:`attach` compares it between the ranks."""
        args, options = self._made_with
        given = [_text(each) for each in args]
        given += [f"{name}={_text(value)}" for name, value in options.items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def bind(self, parameters: Mapping[str, int]) -> None:
        """Get to know the model. Called once, before all other methods.

        Args:
            parameters: The number of elements by the name of the parameter.

        Raises:
            ValueError: A pattern of names fits no parameter.
        """

    def possible(self) -> Sequence[Decision]:
        """Examples of all parameter policies that it may decide on: :func:`attach` checks them."""
        return ()

    def decide(self, step: int, facts: Facts | None) -> Decision:
        """Decide how gradients travel from the reduction ``step`` on.

        Args:
            step: Reductions so far.
            facts: The facts of the last reduction; None before the first one and after a roll-back.
        """
        return Decision()

    def observe(self, validation_loss: float, step: int) -> Verdict:
        """Take note of a validation loss.

        Args:
            validation_loss: The mean of the ranks' losses.
            step: Reductions so far.
        """
        return Verdict.GOOD

    def validation_due(self, step: int) -> bool:
        """Whether it wants a validation after ``step`` reductions."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Everything it remembers, for checkpoints, as JSON has it: numbers, strings, dicts, lists.

        Subclasses add to this.
        """
        return {
            "policy": type(self).__name__,
            "history": [
                [e.step, e.kind, e.parameter, float(e.value), e.level] for e in self.history
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave.

        Args:
            state: The dict, the same on all ranks.

        Raises:
            ValueError: It is of another policy.
        """
        if state.get("policy") != type(self).__name__:
            raise ValueError(
                f"expected the state of a {type(self).__name__}, got {state.get('policy')!r}"
            )
        self.history = [PolicyEvent(*event) for event in state["history"]]

    def _check_levels(self, state: Mapping[str, Any], levels: Sequence[str | int]) -> None:
        """Raise ValueError if the state's numbers are those of other levels than these."""
        name = type(self).__name__
        if "levels" not in state:  # an old one: "int4" had another meaning
            if "int4" in levels:
                raise ValueError(
                    f"the state of this {name} is of a version in which 'int4' meant "
                    "'hadamard+int4:g=128' in policies: write that instead of 'int4'"
                )
        elif list(state["levels"]) != list(levels):
            raise ValueError(
                f"expected the state of a {name} with the levels {list(levels)}, got one with "
                f"{list(state['levels'])}"
            )

    def roll_back(self, state: Mapping[str, Any]) -> None:
        """The training goes on from where ``state`` was taken.

        What a policy learned since then about the danger is kept by those that look for it.
        """
        history = self.history
        self.load_state_dict(state)
        self.history = history


def _text(value: Any) -> str:
    """Equal on all ranks: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", describe(value))


def named(parameters: Mapping[str, int], patterns: Sequence[str]) -> list[str]:
    """The parameters that one of the patterns fits; ValueError for a pattern that fits none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ValueError(
                f"names: no parameter's name matches {pattern!r}; the names begin with "
                f"{', '.join(list(parameters)[:5])}"
            )
    return [n for n in parameters if any(fnmatchcase(n, pattern) for pattern in patterns)]
