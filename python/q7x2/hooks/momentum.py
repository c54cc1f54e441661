"""Hooks that compress a momentum instead of the gradient, by another hook."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from q7x2._core.option_checks import check_codec, check_factor
from q7x2.hooks.base import FullPrecision, HookOptions, Job
from q7x2.hooks.codecs import Quantize, TopK


@dataclass(frozen=True)
class OfMomentum:
    """The common options of hooks that send a momentum, or its changes.

    Args:
        codec: A codec's name, as :class:`Quantize` takes it.
        momentum: The factor of the momentum.
        hook: The hook that compresses, instead of a codec: :class:`Quantize`, :class:`TopK`,
            :class:`OneBit` or :class:`PowerSGD`, with its other options. Parameters that it sends
            uncompressed have the same momentum.

    Raises:
        ValueError: There is no such codec, the hook does not compress gradients, or ``momentum`` is
            not at least 0 and less than 1.
    """

    codec: str = "onebit"
    momentum: float = field(default=0.9, kw_only=True)
    hook: HookOptions | None = field(default=None, kw_only=True)

    _signal: ClassVar[str]  # a name in ``compressing_fields``

    def __post_init__(self) -> None:
        if hasattr(self.codec, "factory"):
            raise ValueError(f"codec is a name: expected hook={self.codec!r}")
        check_codec("codec", self.codec)
        compresses = isinstance(self.hook, FullPrecision) and self.hook._sends_gradients
        if self.hook is not None and not compresses:
            raise ValueError(
                f"hook must compress gradients, as TopK and PowerSGD do, got {self.hook!r}"
            )
        check_factor("momentum", self.momentum)

    @property
    def compressing(self) -> FullPrecision:
        """The hook that compresses."""
        return self.hook if isinstance(self.hook, FullPrecision) else Quantize(self.codec)

    def lanes(self, on_q7x2: bool) -> int:
        return self._hook.lanes(on_q7x2)

    def factory(self, job: Job) -> Any:
        signal = {"signal": self._signal, "momentum": self.momentum}
        return self._hook.factory(replace(job, signal=signal))

    def recipe(self) -> dict[str, Any]:
        codec = {"hook": type(self.compressing).__name__, **self.compressing.recipe()}
        return {"codec": codec, "momentum": self.momentum}

    @property
    def _hook(self) -> HookOptions:
        return cast(HookOptions, self.compressing)


@dataclass(frozen=True)
class MeanMomentum(OfMomentum):
    """What ``q7x2.optim.OneBitAdam`` attaches: the mean momentum instead of the gradient.

    Args:
        start_iter: The number of first steps in full precision. It replaces ``start_iter`` of the
            hook that compresses.
        refresh_every: After these, the last of every ``refresh_every`` steps is also in full
            precision. None: none is.
    """

    start_iter: int = field(default=0, kw_only=True)
    refresh_every: int | None = field(default=None, kw_only=True)

    _signal = "global"

    @property
    def compressing(self) -> FullPrecision:
        hook = super().compressing
        schedule: dict[str, Any] = {
            "start_iter": self.start_iter,
            "burst_every": self.refresh_every,
            "burst_steps": 1,
        }
        if isinstance(hook, TopK):  # no stages: the second moments settle on whole gradients
            schedule["warmup_stages"] = 0
        return replace(hook, **schedule)

    def is_full(self, step: int) -> bool:
        """Whether gradients travel whole in the step of this number."""
        after = step - self.start_iter
        every = self.refresh_every
        return after < 0 or (every is not None and after % every == every - 1)


@dataclass(frozen=True)
class EF21(OfMomentum):
    """Changes of each rank's momentum, compressed (Richtarik et al., EF21, 2021).

    Each rank has a momentum of its own gradients, and sends how it changes. All ranks add up the
    changes, and the optimizer gets the sum as the gradient (EF21-SGDM, Fatkhullin et al., 2023). So
    the optimizer should have no momentum of its own. What the compressor loses is kept and added to
    the next change. So the sum of what was sent and what is kept is always the mean of the momenta.

    Args:
        codec: A codec's name, as :class:`Quantize` takes it.
        momentum: The factor of the momentum; 0: the changes of the gradient are sent.
        hook: The hook that compresses, instead of a codec: :class:`Quantize`, :class:`TopK`,
            :class:`OneBit` or :class:`PowerSGD`, with its other options.

    Raises:
        ValueError: The codec does not exist; the hook keeps no error, or makes a momentum of its
            own; or ``momentum`` is out of range.
    """

    codec: str = "int4:g=128"

    _signal = "difference"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not getattr(self.compressing, "use_error_feedback", True):
            raise ValueError("EF21 keeps what is lost: expected a codec with error feedback")
