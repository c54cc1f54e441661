"""What all hooks' options have in common: the protocol, the job they are made for, the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from q7x2._core.option_checks import check_strings, check_whole

if TYPE_CHECKING:
    import torch

NamedParameters = Sequence["tuple[str, torch.Tensor]"]


@dataclass(frozen=True)
class Job:
    """What a hook is to be made for.

    Args:
        parameters: The model's, by name.
        on_q7x2: The process group's backend is q7x2.
        are_shards: The parameters are shards of FSDP's modules: vectors, whatever they hold.
        owns: Whether the hook is to reduce the parameter of this name; see :class:`Compose`.
        signal: What is to be compressed, if not the gradient: options of ``compressing_fields``.
    """

    parameters: NamedParameters
    on_q7x2: bool
    are_shards: bool = False
    owns: Callable[[str], bool] = lambda name: True
    signal: Mapping[str, Any] = field(default_factory=dict)


class HookOptions(Protocol):
    """The type of all hooks: one algorithm and its options, for :func:`attach`.

    :class:`Quantize` and the other hooks have it; its methods are for q7x2 itself.
    """

    def lanes(self, on_q7x2: bool) -> int:
        """How many process groups the hook needs for itself.

        Args:
            on_q7x2: Whether the backend of the model's group is q7x2.
        """

    def factory(self, job: Job) -> Any:
        """The factory of the hook in C++, for the parameters and the group that ``job`` names."""

    def recipe(self) -> dict[str, Any]:
        """What a checkpoint of its state must have in common with it."""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the shell-like patterns fits the parameter's whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(patterns: Sequence[str], parameters: NamedParameters, option: str) -> None:
    """Raises ValueError for a pattern that fits no parameter: a misspelt name."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in parameters):
            raise ValueError(
                f"{option}: no parameter's name matches {pattern!r}; the names begin with "
                f"{', '.join(name for name, _ in parameters[:5])}"
            )


@dataclass(frozen=True, kw_only=True)
class FullPrecision:
    """When a compressing hook sends gradients as they are.

    Args:
        start_iter: The number of first steps in full precision. Inaccurate gradients do most harm
            at the beginning of a training.
        burst_every: After the first steps, the last ``burst_steps`` of every ``burst_every`` steps
            are in full precision. They also send what the residuals hold. None: no bursts.
        burst_steps: The number of steps of a burst.
        full_precision: Patterns of names of parameters that are never compressed, for example
            ``("*embedding*", "*.bias")``.

    Raises:
        ValueError: An option is out of its range, or a codec does not exist; from :func:`attach`, a
            pattern matches no parameter.
    """

    start_iter: int = 0
    burst_every: int | None = None
    burst_steps: int = 1
    full_precision: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_whole("start_iter", self.start_iter, 0)
        check_whole("burst_steps", self.burst_steps, 1)
        check_strings("full_precision", self.full_precision)
        if self.burst_every is not None:
            check_whole("burst_every", self.burst_every, 1)
        if self.burst_every is not None and self.burst_steps >= self.burst_every:
            raise ValueError(
                f"burst_steps must be at least 1 and less than burst_every, got {self.burst_steps} "
                f"and {self.burst_every}"
            )

    @property
    def _sends_gradients(self) -> bool:
        """And not something that the hook makes of them."""
        return True

    def _compressing_hook(
        self,
        job: Job,
        compressor: str,
        values: Mapping[str, Any],
        whole: Sequence[bool],
        **compressing: Any,
    ) -> Any:
        """The C++ hook with the compressor of this name, and with these values of its options.

        Args:
            whole: By parameter number: its gradient is never compressed.
            compressing: Options of ``compressing_fields``.
        """
        from q7x2._core.extension import load

        options = {**self._schedule(), **compressing, **job.signal}
        return load().compressing_hook(compressor, dict(values), options, list(whole))

    def _schedule(self) -> dict[str, int]:
        """Those of ``compressing_fields``."""
        return {
            "start_iter": self.start_iter,
            "burst_every": self.burst_every or 0,
            "burst_steps": self.burst_steps,
        }

    def _is_whole(self, job: Job, name: str, parameter: torch.Tensor) -> bool:
        return not job.owns(name) or matches(name, self.full_precision)

    def recipe(self) -> dict[str, Any]:
        names = {option.name for option in fields(self)}
        names -= {"start_iter", "burst_every", "burst_steps"}
        return {name: _plain(getattr(self, name)) for name in sorted(names)}


def _plain(value: Any) -> Any:
    """As it comes back from a checkpoint."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
