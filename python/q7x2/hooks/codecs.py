"""Hooks that send through a codec: quantised, the largest elements, one bit, signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from q7x2._core.option_checks import (
    check_codec,
    check_edges,
    check_factor,
    check_fields,
    check_flags,
    check_positive,
    check_ratio,
    check_whole,
)
from q7x2._core.renamed import renamed
from q7x2.hooks.base import FullPrecision, Job, check_patterns

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Coded(FullPrecision):
    """The common options of hooks that send through a codec.

    Args:
        compress_vectors: Whether biases, norms and other parameters of one dimension also go
            through the codec. They have few elements, and rounding harms them most. None: only if
            momenta or signs are sent, because then all parameters must be. Shards of FSDP2 are
            compressed whatever their dimensions.
        per_parameter: Groups of elements that share a scale, and selections, lie within one
            parameter. Its last group is padded, so a parameter that is not longer than its code is
            sent whole. Otherwise they may span parameters, in the order of DDP's buckets.
        edges: Between which ranks messages are compressed, as ``q7x2.all_reduce`` takes it. Groups
            of other backends take ``"auto"`` only.
    """

    compress_vectors: bool | None = None
    per_parameter: bool = True
    random_seed: int = 0
    edges: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields("codec", self)
        if self.compress_vectors is not None:
            check_flags(compress_vectors=self.compress_vectors)
        check_edges("edges", self.edges)

    def recipe(self) -> dict[str, Any]:
        return {name: value for name, value in super().recipe().items() if name != "edges"}

    def lanes(self, on_q7x2: bool) -> int:
        return 1 if on_q7x2 else 4

    @property
    def _needs_vectors(self) -> bool:
        """What is sent is no gradient, and the optimizer cannot tell whom it got what for."""
        return False

    def _is_whole(self, job: Job, name: str, parameter: torch.Tensor) -> bool:
        with_vectors = self.compress_vectors
        if with_vectors is None:
            with_vectors = self._needs_vectors
        is_vector = parameter.dim() < 2 and not job.are_shards and not with_vectors
        return is_vector or super()._is_whole(job, name, parameter)

    def _coded(
        self,
        job: Job,
        stages: Sequence[tuple[int, str]],
        **compressing: Any,
    ) -> Any:
        """``compressing``: options of ``compressing_fields``."""
        check_patterns(self.full_precision, job.parameters, "full_precision")
        if self.edges != "auto" and not job.on_q7x2:
            raise ValueError(
                f"edges are chosen by q7x2's own groups: expected 'auto', got {self.edges!r}"
            )
        codec = {
            "stages": list(stages),
            "per_parameter": self.per_parameter,
            "over_stock": not job.on_q7x2,
            "edges": self.edges,
            "random_seed": self.random_seed,
        }
        whole = [self._is_whole(job, *each) for each in job.parameters]
        return self._compressing_hook(job, "codec", codec, whole, **compressing)


@renamed(
    choices="policy=q7x2.policy.BitAllocation(...) of q7x2.attach",
    choose_every="decide_every of q7x2.policy.BitAllocation",
    critical_change="policy=q7x2.policy.Accordion(...) of q7x2.attach",
)
@dataclass(frozen=True)
class Quantize(Coded):
    """Send gradients through a codec; what it loses is added to the next gradients.

    This is error feedback (Karimireddy et al., 2019, arXiv 1901.09847).

    Args:
        codec: The codec's name, as ``q7x2.all_reduce`` takes it: ``"int8"``,
            ``"hadamard+int4:g=128"``, ``"topk:0.01+int8"``.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased
            unless the codec rounds at random (``"int4:sr"``).
        random_seed: The seed of the codec's random numbers.
    """

    codec: str = "int8"
    use_error_feedback: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codec("codec", self.codec)
        check_flags(use_error_feedback=self.use_error_feedback)

    def factory(self, job: Job) -> Any:
        return self._coded(
            job,
            [(0, self.codec)],
            use_error_feedback=self.use_error_feedback,
        )

    def recipe(self) -> dict[str, Any]:
        recipe = super().recipe()
        # States of 0.1.0a1 mean another codec by the short name (_core/hook_state.py).
        return recipe | {"codec": "int4:g=512"} if self.codec == "int4" else recipe


@renamed(warmup_steps="start_iter", threshold="selection")
@dataclass(frozen=True)
class TopK(Coded):
    """The largest elements of each parameter; the others are kept until they are large.

    With ``momentum`` it is Deep Gradient Compression (Lin et al., 2018): each rank accumulates
    momentum before it selects, so the optimizer must have none of its own.

    Args:
        ratio: The share of the elements of each parameter that are sent.
        start_iter: The number of first steps, 400 by default. They are not in full precision: the
            ratio falls to ``ratio`` in ``warmup_stages`` stages of equal length.
        warmup_stages: The number of these stages. Their ratios are powers of ``ratio``: 0.25,
            0.063, 0.016, 0.004 for 0.001. 0: the first ``start_iter`` steps are in full precision.
        values: The codec of the selected elements: ``"fp32"``, or for example ``"int8"``.
        selection: ``"exact"``, or ``"sampled"``: a sample estimates the threshold, which saves one
            pass over memory.
        momentum: The factor of each rank's momentum; 0: none. When an element is sent, its momentum
            becomes zero.
        clip_norm: The largest norm (L2) that a parameter's gradient may have on a rank; longer ones
            are scaled down before they are accumulated. With n ranks and a norm of N for the mean
            gradient, N / sqrt(n) is usual. None: any.
        random_seed: The seed of the samples.
    """

    ratio: float = 0.01
    start_iter: int = field(default=400, kw_only=True)
    warmup_stages: int = field(default=4, kw_only=True)
    values: str = field(default="fp32", kw_only=True)
    selection: str = field(default="exact", kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("ratio", self.ratio)
        if self.selection not in ("exact", "sampled"):
            raise ValueError(f"selection must be 'exact' or 'sampled', got {self.selection!r}")
        check_codec("values", self.values)
        check_codec("values", self.codec_at(self.ratio))
        check_factor("momentum", self.momentum)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        check_whole("warmup_stages", self.warmup_stages, 0)

    def codec_at(self, ratio: float) -> str:
        """The codec's name if the part ``ratio`` of each parameter is sent."""
        select = "topk" if self.selection == "exact" else "sampled"
        name = f"{select}:{ratio:.6g}"
        return name if self.values == "fp32" else f"{name}+{self.values}"

    @property
    def _needs_vectors(self) -> bool:
        return self.momentum > 0

    @property
    def _sends_gradients(self) -> bool:
        return self.momentum == 0

    def stages(self) -> list[tuple[int, str]]:
        """The codecs and the steps from which they hold."""
        n = self.warmup_stages if self.start_iter else 0
        ratios = [(i * self.start_iter // n, self.ratio ** ((i + 1) / (n + 1))) for i in range(n)]
        ratios.append((self.start_iter if n else 0, self.ratio))
        return [(first, self.codec_at(ratio)) for first, ratio in ratios]

    def _schedule(self) -> dict[str, int]:
        schedule = super()._schedule()
        return schedule | {"start_iter": 0} if self.warmup_stages else schedule

    def factory(self, job: Job) -> Any:
        return self._coded(
            job,
            self.stages(),
            signal="accumulated" if self.momentum else "gradient",
            momentum=self.momentum,
            clip_norm=self.clip_norm or 0.0,
        )


@renamed(group="group_size")
@dataclass(frozen=True, kw_only=True)
class OneBit(Coded):
    """One bit per element, with error feedback: 1-bit SGD (Seide et al., 2014).

    One bit is coarse, and the residual is sent late. With momentum, the learning rate must be
    several times smaller than without compression. ``Quantize("int2")`` does not need that.

    Args:
        start_iter: The number of first steps in full precision, 100 by default, as in the paper.
        group_size: The number of elements that share a scale, their mean magnitude. There are
            1 + 32 / group_size bits per element.
        random_seed: It has no effect on the results.
    """

    start_iter: int = 100
    group_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codec("group_size", f"onebit:g={self.group_size}")

    def factory(self, job: Job) -> Any:
        return self._coded(job, [(0, f"onebit:g={self.group_size}")])

    def recipe(self) -> dict[str, Any]:
        recipe = super().recipe()
        recipe["group"] = recipe.pop("group_size")  # its name in saved states
        return recipe


@dataclass(frozen=True, kw_only=True)
class SignSGD(Coded):
    """The majority of the ranks' signs: signSGD, with momentum Signum (Bernstein et al., 2018).

    Gradients become -1 or 1, so learning rates are those of Adam, and the optimizer must have no
    momentum of its own. A rank whose element is zero votes at random, and ties are decided at
    random. A gradient that is zero on all ranks, as a whole, stays zero. There is no residual.

    Args:
        momentum: The factor of each rank's moving average, whose signs are sent; 0: the gradients'.
        random_seed: The seed of the random votes.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor("momentum", self.momentum)
        if self.edges not in ("auto", "all"):
            raise ValueError(
                f"signs are a vote of all ranks: expected edges auto or all, got {self.edges}"
            )

    @property
    def _needs_vectors(self) -> bool:
        return True

    @property
    def _sends_gradients(self) -> bool:
        return False

    def factory(self, job: Job) -> Any:
        return self._coded(
            job,
            [(0, "sign")],
            use_error_feedback=False,
            signal="averaged" if self.momentum else "gradient",
            momentum=self.momentum,
        )


@dataclass(frozen=True, kw_only=True)
class LionUpdate(SignSGD):
    """What ``q7x2.optim.DistributedLion`` attaches: the majority of the signs of Lion's updates.

    Args:
        momentum: The share of each rank's momentum in its update.
        kept_momentum: The factor with which it keeps its momentum.
    """

    kept_momentum: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor("kept_momentum", self.kept_momentum)

    def factory(self, job: Job) -> Any:
        return self._coded(
            job,
            [(0, "sign")],
            use_error_feedback=False,
            signal="lion",
            momentum=self.momentum,
            kept_momentum=self.kept_momentum,
        )
