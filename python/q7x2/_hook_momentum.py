"""Hooks that compress a momentum instead of the gradient, by another hook."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from q7x2._hook_base import FullPrecision, HookOptions, Job
from q7x2._hook_codecs import Quantize, TopK
from q7x2._option_checks import check_codec, check_factor


@dataclass(frozen=True)
class OfMomentum:
    """What hooks have in common that send a momentum, or its changes.

    Args:
        codec: A codec's name, as :class:`Quantize` takes it, or the hook that compresses:
            :class:`Quantize`, :class:`TopK`, :class:`OneBit` or :class:`PowerSGD`. Its other
            options hold. What travels whole has the same momentum.
        momentum: Its factor.
    """

    codec: str | HookOptions = "onebit"
    momentum: float = field(default=0.9, kw_only=True)

    _signal: ClassVar[str]  # of the C++ struct ``CompressingOptions``

    def __post_init__(self) -> None:
        if not isinstance(self.codec, FullPrecision):
            check_codec("codec", self.codec)
        elif not self.codec._sends_gradients:
            raise ValueError(
                f"codec must compress gradients, as TopK and PowerSGD do; {self.codec!r} makes a "
                f"momentum of its own"
            )
        check_factor("momentum", self.momentum)

    @property
    def compressor(self) -> FullPrecision:
        """The hook that compresses."""
        return self.codec if isinstance(self.codec, FullPrecision) else Quantize(str(self.codec))

    def lanes(self, on_q7x2: bool) -> int:
        return self._hook.lanes(on_q7x2)

    def factory(self, job: Job) -> Any:
        signal = {"signal": self._signal, "momentum": self.momentum}
        return self._hook.factory(replace(job, signal=signal))

    def recipe(self) -> dict[str, Any]:
        codec = {"hook": type(self.compressor).__name__, **self.compressor.recipe()}
        return {"codec": codec, "momentum": self.momentum}

    @property
    def _hook(self) -> HookOptions:
        return cast(HookOptions, self.compressor)


@dataclass(frozen=True)
class MeanMomentum(OfMomentum):
    """What ``q7x2.optim.OneBitAdam`` attaches: the mean momentum instead of the gradient.

    Args:
        start_iter: Steps in full precision. It replaces ``start_iter`` of the hook that compresses.
        refresh_every: After those, the last of so many steps is in full precision too. None: none.
    """

    start_iter: int = field(default=0, kw_only=True)
    refresh_every: int | None = field(default=None, kw_only=True)

    _signal = "global"

    @property
    def compressor(self) -> FullPrecision:
        hook = super().compressor
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

    Each rank has a momentum of its own gradients and sends how it changes; all of them add up what
    they received, and that is the gradient that the optimizer gets (EF21-SGDM, Fatkhullin et al.,
    2023). So the optimizer should have no momentum of its own. What the compressor loses is kept
    and added to the next change: what ranks have received and what they still hold back is
    together the mean of their momenta.

    Args:
        codec: A codec's name, as :class:`Quantize` takes it, or the hook that compresses:
            :class:`Quantize`, :class:`TopK`, :class:`OneBit` or :class:`PowerSGD`. Its other
            options hold.
        momentum: The factor of the momentum; 0: the gradient.
    """

    codec: str | HookOptions = "int4:g=128"

    _signal = "difference"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not getattr(self.compressor, "use_error_feedback", True):
            raise ValueError("EF21 keeps what is lost: expected a codec with error feedback")
