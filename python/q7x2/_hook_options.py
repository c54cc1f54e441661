"""What a user can ask of a communication hook: one class for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NamedParameters = Sequence["tuple[str, torch.Tensor]"]


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

    @property
    def groups(self) -> int:
        """Process groups that the hook needs for itself."""
        return 1

    def __post_init__(self) -> None:
        import torch

        if self.dtype not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"dtype must be torch.float16 or torch.bfloat16, got {self.dtype}")

    def make(self, groups: list[Any], parameters: NamedParameters, threads: int) -> Any:
        from q7x2._extension import load

        return load().make_dense_hook(groups, list(parameters), threads, dtype=self.dtype)

    def recipe(self) -> dict[str, Any]:
        """What a checkpoint of its state must have in common with it."""
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
        if self.start_iter < 0:
            raise ValueError(f"start_iter must not be negative, got {self.start_iter}")
        if self.burst_every is not None and not 1 <= self.burst_steps < self.burst_every:
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


@dataclass(frozen=True, kw_only=True)
class PowerSGD(FullPrecision):
    """Gradients of matrices as products of two thin ones (Vogels et al., 2019).

    A gradient of n x m elements travels as ``rank * (n + m)``; see docs/hooks.md.

    Args:
        rank: Of the approximation, for all matrices, or by pattern of the parameter's name, the
            first that fits: ``{"*.attention.*": 2, "*": 4}``. 0 sends a gradient whole, as do names
            that no pattern fits.
        min_compression_rate: A matrix is compressed where that makes it more than this many times
            smaller.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased.
        warm_start: Begin each step with the last one's factor.
        alternating: One collective a step and half of the bytes: the two halves of the power
            iteration take turns. Needs ``warm_start``.
        random_seed: Of the first factors.
    """

    rank: int | Mapping[str, int] = 4
    min_compression_rate: float = 2
    use_error_feedback: bool = True
    warm_start: bool = True
    alternating: bool = False
    random_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = list(self.rank.values()) if isinstance(self.rank, Mapping) else [self.rank]
        if any(rank < 0 for rank in ranks):
            raise ValueError(f"rank must not be negative, got {self.rank}")
        if self.alternating and not self.warm_start:
            raise ValueError("alternating needs warm_start: a half step begins with the last one's")

    @property
    def groups(self) -> int:
        """Process groups that the hook needs for itself."""
        return 1 if self.alternating else 2

    def rank_of(self, name: str) -> int:
        """The rank asked for this parameter, before its shape limits it; 0: sent whole."""
        if matches(name, self.full_precision):
            return 0
        if isinstance(self.rank, int):
            return self.rank
        return next((r for pattern, r in self.rank.items() if fnmatchcase(name, pattern)), 0)

    def make(self, groups: list[Any], parameters: NamedParameters, threads: int) -> Any:
        from q7x2._extension import load

        check_patterns(self.full_precision, parameters, "full_precision")
        if isinstance(self.rank, Mapping):
            check_patterns(list(self.rank), parameters, "rank")
        return load().make_powersgd_hook(
            groups,
            list(parameters),
            threads,
            ranks=[self.rank_of(name) for name, _ in parameters],
            default_rank=self.rank if isinstance(self.rank, int) else 0,
            min_compression_rate=self.min_compression_rate,
            error_feedback=self.use_error_feedback,
            warm_start=self.warm_start,
            alternating=self.alternating,
            seed=self.random_seed,
            **self._full_precision_arguments(),
        )

    def recipe(self) -> dict[str, Any]:
        """What a checkpoint of its state must have in common with it."""
        names = {option.name for option in fields(self)}
        names -= {"start_iter", "burst_every", "burst_steps"}
        recipe = {name: getattr(self, name) for name in sorted(names)}
        recipe["full_precision"] = list(self.full_precision)
        recipe["rank"] = dict(self.rank) if isinstance(self.rank, Mapping) else self.rank
        return recipe


@dataclass(frozen=True)
class Quantize(FullPrecision):
    """Gradients through a codec, what it loses kept and added to the next ones.

    Needs a model whose process group has q7x2 as its backend.

    Args:
        codec: Its name: ``"int8"``, ``"int4:g=128"``, ``"topk:0.01+int8"``; as ``q7x2.all_reduce``
            takes it.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased
            unless the codec rounds at random (``"int4:sr"``).
        random_seed: Of the codec's random numbers.
    """

    codec: str = "int8"
    use_error_feedback: bool = field(default=True, kw_only=True)
    random_seed: int = field(default=0, kw_only=True)

    @property
    def groups(self) -> int:
        """Process groups that the hook needs for itself."""
        return 2

    def make(self, groups: list[Any], parameters: NamedParameters, threads: int) -> Any:
        from q7x2._extension import load
        from q7x2._groups import backend_of

        for group in groups:
            backend_of(group, type(self).__name__)
        check_patterns(self.full_precision, parameters, "full_precision")
        return load().make_coded_hook(
            groups,
            list(parameters),
            threads,
            codec=self.codec,
            whole=[matches(name, self.full_precision) for name, _ in parameters],
            error_feedback=self.use_error_feedback,
            seed=self.random_seed,
            **self._full_precision_arguments(),
        )

    def recipe(self) -> dict[str, Any]:
        """What a checkpoint of its state must have in common with it."""
        return {
            "codec": self.codec,
            "full_precision": list(self.full_precision),
            "random_seed": self.random_seed,
            "use_error_feedback": self.use_error_feedback,
        }


HookOptions = Allreduce | PowerSGD | Quantize
