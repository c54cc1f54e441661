"""``PowerSGD``: gradients of matrices as products of two thin ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from q7x2._core.option_checks import check_fields, check_flags, check_whole
from q7x2.hooks.base import FullPrecision, Job, check_patterns, matches


@dataclass(frozen=True, kw_only=True)
class PowerSGD(FullPrecision):
    """Gradients of matrices as products of two thin ones (Vogels et al., 2019).

    A gradient of n x m elements travels as ``rank * (n + m)``; see docs/hooks.md.

    Args:
        start_iter: The number of first steps in full precision, 100 by default. The subspace
            follows the gradients step by step, and gradients change most at the beginning.
        rank: The rank of the approximation, for all matrices, or by patterns of parameters' names:
            ``{"*.attention.*": 2, "*": 4}``. The first pattern that matches counts. A gradient with
            rank 0 or without a matching pattern is sent whole.
        min_compression_rate: A matrix is compressed only if that makes it more than this many times
            smaller.
        use_error_feedback: Add what was lost to the next gradient. Without it results are biased.
        warm_start: Begin each step with the factor of the last one.
        reset_every: With ``warm_start``: every ``reset_every`` compressed steps begin with random
            factors again, which finds directions that have become large. None: never.
        alternating: The two halves of the power iteration take turns. A step then has one
            collective and half of the bytes. Needs ``warm_start``.
        batched: Fold each bucket, with its vectors, into one square matrix. This needs fewer bytes
            and products, but approximates worse. ``min_compression_rate`` then has no effect.
        factors: The type that factors are rounded to when they are sent: ``"fp32"``, ``"bf16"`` or
            ``"fp16"``, which has more digits than bf16, but overflows above 65504. Residuals keep
            what the rounding loses. Ranks of one host add the second factor unrounded.
        random_seed: The seed of the first factors.
    """

    start_iter: int = 100
    rank: int | Mapping[str, int] = 4
    min_compression_rate: float = 2
    use_error_feedback: bool = True
    warm_start: bool = True
    reset_every: int | None = None
    alternating: bool = False
    batched: bool = False
    factors: str = "bf16"
    random_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields("low_rank", self)
        check_flags(use_error_feedback=self.use_error_feedback, batched=self.batched)
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
        if self.reset_every is not None:
            check_whole("reset_every", self.reset_every, 1)
            if self.alternating or self.batched or not self.warm_start:
                raise ValueError(
                    "reset_every resets the warm factors of matrices: expected warm_start=True, "
                    "alternating=False and batched=False"
                )
        if self.alternating and not self.warm_start:
            raise ValueError("alternating needs warm_start: a half step begins with the last one's")

    def lanes(self, on_q7x2: bool) -> int:
        # Other backends take one more to tell a rank what the rounding of a sum loses.
        gathers = not on_q7x2 and self.use_error_feedback and self.factors != "fp32"
        return (1 if self.alternating else 2) + gathers

    @property
    def _has_one_rank(self) -> bool:
        return isinstance(self.rank, int)

    def rank_of(self, name: str) -> int:
        """The rank asked for the parameter ``name``, before its shape limits it; 0: sent whole."""
        if matches(name, self.full_precision):
            return 0
        if isinstance(self.rank, int):
            return self.rank
        return next((r for pattern, r in self.rank.items() if fnmatchcase(name, pattern)), 0)

    def factory(self, job: Job) -> Any:
        import torch

        factors = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.factors]
        compressing: dict[str, Any] = {
            "whole": [not job.owns(name) for name, _ in job.parameters],
            "use_error_feedback": self.use_error_feedback,
        }
        shared = {
            "warm_start": self.warm_start,
            "factor_dtype": factors,
            "over_stock": not job.on_q7x2,
            "random_seed": self.random_seed,
        }
        if self.batched:
            return self._compressing_hook(
                job, "flat_low_rank", {"rank": self.rank, **shared}, **compressing
            )
        if job.are_shards:
            raise ValueError(
                "PowerSGD needs matrices, and FSDP2's shards are none: expected batched=True"
            )
        check_patterns(self.full_precision, job.parameters, "full_precision")
        if isinstance(self.rank, Mapping):
            check_patterns(list(self.rank), job.parameters, "rank")
        low_rank = {
            "ranks": [self.rank_of(name) if job.owns(name) else 0 for name, _ in job.parameters],
            "default_rank": self.rank if isinstance(self.rank, int) else 0,
            "min_compression_rate": self.min_compression_rate,
            "reset_every": self.reset_every or 0,
            "alternating": self.alternating,
            **shared,
        }
        return self._compressing_hook(job, "low_rank", low_rank, **compressing)
