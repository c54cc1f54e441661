"""What a user can ask of a communication hook: one class for each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from q7x2._option_checks import (
    check_codec,
    check_edges,
    check_factor,
    check_flags,
    check_positive,
    check_ratio,
    check_seed,
    check_strings,
    check_whole,
)

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
    """

    parameters: NamedParameters
    on_q7x2: bool
    are_shards: bool = False
    owns: Callable[[str], bool] = lambda name: True


class HookOptions(Protocol):
    """One algorithm and its options."""

    def lanes(self, on_q7x2: bool) -> int:
        """How many process groups the hook needs for itself, over q7x2 or another backend."""

    def factory(self, job: Job) -> Any:
        """The C++ hook's, ready to be made."""

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
class Allreduce:
    """The dense all-reduce, as DDP does it without a hook, or rounded to 16 bits on the way.

    Args:
        dtype: ``torch.float16`` or ``torch.bfloat16``: what is sent. The gradients' own if None;
            the results are then those of DDP without a hook, to the last bit.
    """

    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        import torch

        if self.dtype not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"dtype must be torch.float16 or torch.bfloat16, got {self.dtype}")

    def lanes(self, on_q7x2: bool) -> int:
        return 1

    def factory(self, job: Job) -> Any:
        from q7x2._extension import load

        return load().dense_hook(self.dtype)

    def recipe(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class FullPrecision:
    """When a compressing hook sends gradients as they are.

    Args:
        start_iter: The first steps, in full precision: the beginning of a training bears
            inaccurate gradients least.
        burst_every: Of the steps after those, each so-manyth begins nothing new: at the end of
            every ``burst_every`` steps, ``burst_steps`` are in full precision and take with them
            what the residuals hold. None: no bursts.
        burst_steps: Steps of a burst.
        full_precision: Patterns of names of parameters that are never compressed, for example
            ``("*embedding*", "*.bias")``.
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

    def _full_precision_arguments(self) -> dict[str, int]:
        return {
            "full_precision_start": self.start_iter,
            "full_precision_period": self.burst_every or 0,
            "full_precision_length": self.burst_steps,
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


@dataclass(frozen=True, kw_only=True)
class PowerSGD(FullPrecision):
    """Gradients of matrices as products of two thin ones (Vogels et al., 2019).

    A gradient of n x m elements travels as ``rank * (n + m)``; see docs/hooks.md.

    Args:
        start_iter: As with the other hooks, but 100 by default: a subspace that follows the
            gradients step by step is furthest behind where they change most.
        rank: Of the approximation, for all matrices, or by pattern of the parameter's name, the
            first that fits: ``{"*.attention.*": 2, "*": 4}``. 0 sends a gradient whole, as do names
            that no pattern fits.
        min_compression_rate: A matrix is compressed where that makes it more than this many times
            smaller.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased.
        warm_start: Begin each step with the last one's factor.
        alternating: One collective a step and half of the bytes: the two halves of the power
            iteration take turns. Needs ``warm_start``.
        batched: Fold each bucket into one square matrix, vectors and all: fewer bytes and products,
            and a worse approximation. ``min_compression_rate`` is then without effect.
        factors: What they are rounded to on the way, ``"fp32"``, ``"bf16"`` or ``"fp16"``, which is
            bf16 with more digits and overflows above 65504. Residuals make up for it.
        random_seed: Of the first factors.
    """

    start_iter: int = 100
    rank: int | Mapping[str, int] = 4
    min_compression_rate: float = 2
    use_error_feedback: bool = True
    warm_start: bool = True
    alternating: bool = False
    batched: bool = False
    factors: str = "bf16"
    random_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("min_compression_rate", self.min_compression_rate)
        check_flags(
            use_error_feedback=self.use_error_feedback,
            warm_start=self.warm_start,
            alternating=self.alternating,
            batched=self.batched,
        )
        check_seed("random_seed", self.random_seed)
        if self.factors not in ("fp32", "bf16", "fp16"):
            raise ValueError(f"factors must be 'fp32', 'bf16' or 'fp16', got {self.factors!r}")
        if self.batched and (self.alternating or self.full_precision or not self._has_one_rank):
            raise ValueError(
                "batched folds whole buckets into one matrix: expected an int as rank, no "
                "full_precision and alternating=False"
            )
        ranks = list(self.rank.values()) if isinstance(self.rank, Mapping) else [self.rank]
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise TypeError(f"rank must be an int, or a dict of ints, got {self.rank!r}")
        if any(rank < 0 for rank in ranks):
            raise ValueError(f"rank must not be negative, got {self.rank}")
        if self.batched and self.rank == 0:
            raise ValueError("batched compresses all there is: expected rank of at least 1, got 0")
        if self.alternating and not self.warm_start:
            raise ValueError("alternating needs warm_start: a half step begins with the last one's")

    def lanes(self, on_q7x2: bool) -> int:
        return 1 if self.alternating else 2

    @property
    def _has_one_rank(self) -> bool:
        return isinstance(self.rank, int)

    def rank_of(self, name: str) -> int:
        """The rank asked for this parameter, before its shape limits it; 0: sent whole."""
        if matches(name, self.full_precision):
            return 0
        if isinstance(self.rank, int):
            return self.rank
        return next((r for pattern, r in self.rank.items() if fnmatchcase(name, pattern)), 0)

    def factory(self, job: Job) -> Any:
        import torch

        from q7x2._extension import load

        factor_dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.factors]
        if self.batched:
            return load().flat_powersgd_hook(
                rank=self.rank,
                absent=[not job.owns(name) for name, _ in job.parameters],
                error_feedback=self.use_error_feedback,
                warm_start=self.warm_start,
                factor_dtype=factor_dtype,
                seed=self.random_seed,
                **self._full_precision_arguments(),
            )
        if job.are_shards:
            raise ValueError(
                "PowerSGD needs matrices, and FSDP2's shards are none: expected batched=True"
            )
        check_patterns(self.full_precision, job.parameters, "full_precision")
        if isinstance(self.rank, Mapping):
            check_patterns(list(self.rank), job.parameters, "rank")
        return load().powersgd_hook(
            ranks=[self.rank_of(name) if job.owns(name) else 0 for name, _ in job.parameters],
            default_rank=self.rank if isinstance(self.rank, int) else 0,
            min_compression_rate=self.min_compression_rate,
            error_feedback=self.use_error_feedback,
            warm_start=self.warm_start,
            alternating=self.alternating,
            factor_dtype=factor_dtype,
            seed=self.random_seed,
            **self._full_precision_arguments(),
        )


@dataclass(frozen=True, kw_only=True)
class Coded(FullPrecision):
    """What hooks that send through a codec have in common.

    Args:
        edges: Between which ranks messages are compressed, as ``q7x2.all_reduce`` takes it. Groups
            of other backends take ``"auto"`` only.
    """

    random_seed: int = 0
    edges: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed("random_seed", self.random_seed)
        check_edges("edges", self.edges)

    def recipe(self) -> dict[str, Any]:
        return {name: value for name, value in super().recipe().items() if name != "edges"}

    def lanes(self, on_q7x2: bool) -> int:
        return 1 if on_q7x2 else 4

    def _coded_factory(
        self,
        job: Job,
        stages: Sequence[tuple[int, str]],
        *,
        use_error_feedback: bool = True,
        momentum: str = "NONE",
        momentum_factor: float = 0.0,
        clip_norm: float | None = None,
        choices: Sequence[str] = (),
        choose_every: int = 0,
    ) -> Any:
        from q7x2._extension import load

        check_patterns(self.full_precision, job.parameters, "full_precision")
        if self.edges != "auto" and not job.on_q7x2:
            raise ValueError(
                f"edges are chosen by q7x2's own groups: expected 'auto', got {self.edges!r}"
            )
        return load().coded_hook(
            stages=list(stages),
            whole=[self._is_whole(job, *each) for each in job.parameters],
            error_feedback=use_error_feedback,
            momentum=getattr(load().Momentum, momentum),
            momentum_factor=momentum_factor,
            clip_norm=clip_norm or 0.0,
            choices=list(choices),
            choose_every=choose_every,
            over_stock=not job.on_q7x2,
            edges=self.edges,
            seed=self.random_seed,
            **self._full_precision_arguments(),
        )


@dataclass(frozen=True)
class Quantize(Coded):
    """Gradients through a codec, what it loses kept and added to the next ones.

    Args:
        codec: Its name: ``"int8"``, ``"int4:g=128"``, ``"topk:0.01+int8"``; as ``q7x2.all_reduce``
            takes it.
        choices: Further codecs, for example ``("int2:g=128", "int8:g=128")`` beside
            ``"int4:g=128"``. Each gradient then gets the one among all that makes the bytes of all
            fewest while their squared errors together are no more than those of ``codec`` alone
            (Markov et al., L-GreCo, 2024).
        choose_every: Steps between two such choices.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased
            unless the codec rounds at random (``"int4:sr"``).
        random_seed: Of the codec's random numbers.
    """

    codec: str = "int8"
    choices: Sequence[str] = field(default=(), kw_only=True)
    choose_every: int = field(default=200, kw_only=True)
    use_error_feedback: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codec("codec", self.codec)
        check_strings("choices", self.choices)
        for choice in self.choices:
            check_codec("choices", choice)
        check_whole("choose_every", self.choose_every, 1)
        check_flags(use_error_feedback=self.use_error_feedback)

    def factory(self, job: Job) -> Any:
        return self._coded_factory(
            job,
            [(0, self.codec)],
            use_error_feedback=self.use_error_feedback,
            choices=self.choices,
            choose_every=self.choose_every,
        )


@dataclass(frozen=True)
class TopK(Coded):
    """The largest elements of each bucket; the others are kept until they are large.

    With ``momentum`` it is Deep Gradient Compression (Lin et al., 2018): each rank accumulates
    momentum before it selects, so the optimizer must have none of its own.

    Args:
        ratio: Of elements that are sent, in each bucket.
        values: Their codec: ``"fp32"``, or for example ``"int8"``.
        threshold: ``"exact"``, or ``"sampled"``: of a sample's largest, one pass over memory less.
        momentum: The factor of each rank's momentum; 0: none. Where an element was sent, it starts
            from zero again.
        clip_norm: The largest norm (L2) that a parameter's gradient may have on a rank; longer ones
            are scaled down before they are accumulated. With n ranks and a norm of N for the mean
            gradient, N / sqrt(n) is usual. None: any.
        warmup_steps: Steps over which ratios fall to ``ratio``, in ``warmup_stages`` of equal
            length: powers of ``ratio``, 0.25, 0.063, 0.016, 0.004 for 0.001.
        random_seed: Of samples.
    """

    ratio: float = 0.01
    values: str = field(default="fp32", kw_only=True)
    threshold: str = field(default="exact", kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    warmup_steps: int = field(default=400, kw_only=True)
    warmup_stages: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("ratio", self.ratio)
        if self.threshold not in ("exact", "sampled"):
            raise ValueError(f"threshold must be 'exact' or 'sampled', got {self.threshold!r}")
        check_codec("values", self.values)
        check_codec("values", self.codec_at(self.ratio))
        check_factor("momentum", self.momentum)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        check_whole("warmup_steps", self.warmup_steps, 0)
        check_whole("warmup_stages", self.warmup_stages, 1)

    def codec_at(self, ratio: float) -> str:
        """The codec's name for this ratio."""
        select = "topk" if self.threshold == "exact" else "sampled"
        name = f"{select}:{ratio:.6g}"
        return name if self.values == "fp32" else f"{name}+{self.values}"

    def stages(self) -> list[tuple[int, str]]:
        """The codecs and the steps from which they hold, the full-precision ones included."""
        n = self.warmup_stages
        stages = [
            (self.start_iter + i * self.warmup_steps // n, self.ratio ** ((i + 1) / (n + 1)))
            for i in range(n if self.warmup_steps else 0)
        ]
        stages.append((self.start_iter + self.warmup_steps, self.ratio))
        return [
            (first if i else 0, self.codec_at(ratio)) for i, (first, ratio) in enumerate(stages)
        ]

    def factory(self, job: Job) -> Any:
        return self._coded_factory(
            job,
            self.stages(),
            momentum="ACCUMULATED" if self.momentum else "NONE",
            momentum_factor=self.momentum,
            clip_norm=self.clip_norm,
        )


@dataclass(frozen=True, kw_only=True)
class OneBit(Coded):
    """One bit an element, with error feedback: 1-bit SGD (Seide et al., 2014).

    Vectors travel whole, except in FSDP2's shards, which hold them beside matrices: a scale that
    both share suits neither. One bit is coarse, and what is held back arrives late: with momentum,
    the learning rate must be some times smaller than without compression. ``Quantize("int2")``
    needs no such care.

    Args:
        start_iter: As with the other hooks, but 100 by default: the paper begins so too.
        group: Elements that share a scale, their mean magnitude; 1 + 32 / group bits an element.
        random_seed: Without effect on the results.
    """

    start_iter: int = 100
    group: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codec("group", f"onebit:g={self.group}")

    def _is_whole(self, job: Job, name: str, parameter: torch.Tensor) -> bool:
        is_vector = parameter.dim() < 2 and not job.are_shards
        return is_vector or super()._is_whole(job, name, parameter)

    def factory(self, job: Job) -> Any:
        return self._coded_factory(job, [(0, f"onebit:g={self.group}")])


@dataclass(frozen=True, kw_only=True)
class SignSGD(Coded):
    """The majority of the ranks' signs: signSGD, with momentum Signum (Bernstein et al., 2018).

    Gradients become -1 or 1, so learning rates are those of Adam, and the optimizer must have no
    momentum of its own. Who has a zero votes at random, and ties are drawn; a gradient that is zero
    on all ranks, as a whole, stays zero. Nothing is kept of what is lost.

    Args:
        momentum: The factor of each rank's moving average, whose signs are sent; 0: the gradients'.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor("momentum", self.momentum)
        if self.edges not in ("auto", "all"):
            raise ValueError(
                f"signs are a vote of all ranks: expected edges auto or all, got {self.edges}"
            )

    def factory(self, job: Job) -> Any:
        return self._coded_factory(
            job,
            [(0, "sign")],
            use_error_feedback=False,
            momentum="AVERAGED" if self.momentum else "NONE",
            momentum_factor=self.momentum,
        )


@dataclass(frozen=True, kw_only=True)
class OneBitMomentum(Coded):
    """What ``q7x2.optim.OneBitAdam`` attaches: the mean momentum in the gradients' place.

    Args:
        codec: Of the momentum, once the first ``start_iter`` steps are over.
        momentum: Its factor.
    """

    codec: str = "onebit"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codec("codec", self.codec)
        check_factor("momentum", self.momentum)

    def factory(self, job: Job) -> Any:
        return self._coded_factory(
            job, [(0, self.codec)], momentum="GLOBAL", momentum_factor=self.momentum
        )


@dataclass(frozen=True)
class Compose:
    """Each parameter by a hook of its own, by pattern of its name, the first that fits.

    >>> q7x2.Compose({"embedding.*": q7x2.TopK(0.01), "*": q7x2.PowerSGD(rank=4)})

    Args:
        hooks: By pattern. Every parameter must have one.
    """

    hooks: Mapping[str, HookOptions]

    def __post_init__(self) -> None:
        if not isinstance(self.hooks, Mapping) or not self.hooks:
            raise ValueError(
                f"hooks must be a dict of hooks by pattern, such as {{'*': q7x2.Quantize()}}, got "
                f"{self.hooks!r}"
            )
        for pattern, hook in self.hooks.items():
            if not isinstance(pattern, str) or not hasattr(hook, "factory"):
                raise ValueError(
                    f"hooks must be a dict of hooks by pattern, got {hook!r} for {pattern!r}"
                )

    def lanes(self, on_q7x2: bool) -> int:
        return max(hook.lanes(on_q7x2) for hook in self.hooks.values())

    def owner_of(self, name: str) -> int:
        """The position of the hook that reduces the parameter of this name."""
        for i, pattern in enumerate(self.hooks):
            if fnmatchcase(name, pattern):
                return i
        raise ValueError(
            f"no pattern matches parameter {name!r}: expected one that does, '*' for all others; "
            f"got {', '.join(map(repr, self.hooks))}"
        )

    def factory(self, job: Job) -> Any:
        from q7x2._extension import load

        check_patterns(list(self.hooks), job.parameters, "Compose")
        owners = {name: self.owner_of(name) for name, _ in job.parameters}

        def owned_by(hook: int) -> Callable[[str], bool]:
            return lambda name: owners[name] == hook

        factories = [
            hook.factory(replace(job, owns=owned_by(i)))
            for i, hook in enumerate(self.hooks.values())
        ]
        return load().composed_hook(factories, list(owners.values()))

    def recipe(self) -> dict[str, Any]:
        return {
            pattern: {"hook": type(hook).__name__, **hook.recipe()}
            for pattern, hook in self.hooks.items()
        }
