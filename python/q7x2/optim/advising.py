"""``advise``: measure a training and its network, and propose how to communicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from q7x2._core.groups import resolve_group
from q7x2._core.option_checks import check_positive, check_whole
from q7x2._core.units import bytes_text, time_text
from q7x2.optim.advise_measure import (
    cores_per_rank,
    measure_computing,
    measure_reducing,
    measure_step,
)
from q7x2.optim.advise_model import Computing, Reducing, accumulation, buckets_of, step_seconds
from q7x2.optim.advise_price import Price, price_of

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

    from q7x2.hooks.options import HookOptions

_BUCKETS_MB = (1, 5, 25, 100)
_WORTH = 1.05  # a proposal that is faster by less is not worth its price in accuracy
_DENSE_TRIALS = 2  # bucket sizes without compression: what the others are compared with
_MOST_BACKWARDS = 1024


@dataclass(frozen=True)
class Proposal:
    """One way to communicate, and what it is predicted to cost.

    Attributes:
        hook: What to give to :func:`attach`.
        bucket_cap_mb: What to give to ``DistributedDataParallel``.
        step_seconds: Seconds of a forward and backward with its reduction, without the optimizer.
        is_measured: ``step_seconds`` is the time of real steps, not a prediction.
        reduce_seconds: Seconds of the reduction alone, while nothing is computed.
        accumulate: Backwards per reduction with which communication costs at most ``overhead`` of
            the computing time: :class:`Accumulate`, or a batch as many times larger.
        local_steps: The interval of local SGD or :class:`DiLoCo` with which messages of as many
            bytes, that nothing hides, cost at most ``overhead`` of the computing time.
    """

    hook: HookOptions
    bucket_cap_mb: float
    step_seconds: float
    reduce_seconds: float
    accumulate: int
    local_steps: int
    is_measured: bool = False

    @property
    def price(self) -> Price | None:
        """What the hook cost in final loss on one training; None: not measured."""
        return price_of(self.hook)

    @property
    def hook_text(self) -> str:
        """The hook as one would write it, without options that have their defaults."""
        if not is_dataclass(self.hook):
            return repr(self.hook)
        given = [
            f"{each.name}={getattr(self.hook, each.name)!r}"
            for each in fields(self.hook)
            if getattr(self.hook, each.name) != each.default
        ]
        return f"{type(self.hook).__name__}({', '.join(given)})"


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found. ``print`` shows it as text.

    Attributes:
        proposals: First those whose steps were measured, the fastest first, then the predicted
            ones.
        compute_seconds: Seconds of a forward and backward without communication, on the slowest
            rank.
        gradient_bytes: The bytes of all gradients, on one rank.
        dense_seconds: Seconds of a step with the fastest measured proposal that compresses nothing.
        overhead: The share of the computing time that communication may cost with ``accumulate``
            or ``local_steps`` of the proposals.
    """

    proposals: Sequence[Proposal]
    compute_seconds: float
    gradient_bytes: int
    dense_seconds: float
    overhead: float

    @property
    def best(self) -> Proposal:
        """The one with the lowest price of those that are within 5 % of the fastest.

        It compresses nothing if compression does not pay.
        """
        if not self.compression_pays:
            return next(p for p in self.proposals if is_dense(p.hook))
        limit = _WORTH * self.proposals[0].step_seconds
        worthy = [p for p in self.proposals if p.is_measured and p.step_seconds <= limit]
        return min(worthy, key=lambda p: math.inf if p.price is None else p.price.high)

    @property
    def compression_pays(self) -> bool:
        """The fastest proposal is more than 5 % faster than the fastest dense one."""
        return self.dense_seconds > _WORTH * self.proposals[0].step_seconds

    def __str__(self) -> str:
        lines = [
            f"{bytes_text(self.gradient_bytes)} of gradients, "
            f"{time_text(self.compute_seconds)} of computing per step",
            f"{'step':>9}   {'reduce':>9} {'bucket':>7} {'accumulate':>10} {'local steps':>11}  "
            "hook",
        ]
        lines += [
            f"{time_text(p.step_seconds):>9}{' *' if p.is_measured else '  '} "
            f"{time_text(p.reduce_seconds):>9} "
            f"{p.bucket_cap_mb:>4g} MB {p.accumulate:>10} {p.local_steps:>11}  {p.hook_text}"
            for p in self.proposals
        ]
        lines.append("* measured, the others are predicted")
        if not self.compression_pays:
            return "\n".join([*lines, "Compression does not pay here: train without it."])
        best, faster = self.best, self.dense_seconds / self.best.step_seconds
        return "\n".join(
            [
                *lines,
                f"Compression pays: {faster:.2f} x faster steps with {best.hook_text}",
                "and buckets of "
                f"{best.bucket_cap_mb:g} MB. But it may cost loss. Final losses minus that of",
                "uncompressed training, on another training (docs/hooks.md), with 95 % intervals:",
                *self._prices(),
            ]
        )

    def _prices(self) -> list[str]:
        hooks = {p.hook_text: p.price for p in self.proposals if not is_dense(p.hook)}
        return [
            f"  {'not measured' if price is None else price!s:<27}  {hook}"
            for hook, price in hooks.items()
        ]


def advise(
    model: nn.Module,
    step: Callable[[nn.Module], Any],
    *,
    group: ProcessGroup | None = None,
    hooks: Sequence[HookOptions] | None = None,
    buckets_mb: Sequence[float] = _BUCKETS_MB,
    repeats: int = 3,
    trials: int = 4,
    overhead: float = 0.1,
) -> Advice:
    """Measure one training on its network, and say how long steps take with each hook.

    >>> advice = q7x2.advise(model, lambda model: loss_of(model(x), y).backward())
    >>> print(advice)
    >>> ddp = DistributedDataParallel(model, bucket_cap_mb=advice.best.bucket_cap_mb)
    >>> hook = q7x2.attach(ddp, advice.best.hook)

    It is a collective call. It measures when each gradient is ready in a step without
    communication, and how long each hook takes to reduce these gradients in one bucket and in
    many. From this it predicts steps for all sizes of buckets, and runs real steps with the best
    proposals. The weights do not change; buffers may, as in all steps.

    Args:
        model: The model itself, not in a DistributedDataParallel.
        step: Runs one forward and backward of the model that it is given, ``model`` or a
            DistributedDataParallel of it, on a batch of the usual size.
        group: The process group. The default group if None.
        hooks: The hooks to propose. By default dense, bf16, int8, hadamard+int4:g=128 and PowerSGD
            of ranks 8 and 4.
        buckets_mb: Sizes of DDP's buckets to propose, in MiB.
        repeats: Steps and reductions of each kind that are measured, after those that warm up.
        trials: Proposals that are tried in real steps: those with the shortest predictions. The
            two best dense ones are tried too.
        overhead: The share of the computing time that communication may cost with ``accumulate``
            and ``local_steps`` of a proposal.

    Raises:
        TypeError: ``model`` is a DistributedDataParallel.
        ValueError: An option is out of its range, ``model`` has no parameters to train, or
            ``step`` made no gradients.
    """
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.hooks.options import Allreduce

    if isinstance(model, DistributedDataParallel):
        raise TypeError("advise needs the model itself, not a DistributedDataParallel of it")
    check_whole("repeats", repeats, 1)
    check_whole("trials", trials, 1)
    check_positive("overhead", overhead)
    if not buckets_mb:
        raise ValueError("buckets_mb must have at least one size")
    for size in buckets_mb:
        check_positive("buckets_mb", size)
    group = resolve_group(group)
    candidates = list(_candidates() if hooks is None else hooks)
    if not any(is_dense(hook) for hook in candidates):
        candidates.insert(0, Allreduce())

    computing = measure_computing(model, step, group, repeats)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients = [(name, p.grad.detach().clone()) for name, p in named if p.grad is not None]
    if len(gradients) < len(named) or not named:
        missing = next((name for name, p in named if p.grad is None), "any parameter")
        raise ValueError(f"step made no gradient of {missing}: it must run forward and backward")
    model.zero_grad(set_to_none=True)
    cores = cores_per_rank(group)
    proposals = []
    for hook in candidates:
        reducing = measure_reducing(gradients, hook, group, repeats)
        proposals += _proposals(hook, computing, reducing, buckets_mb, cores, overhead)
    # All ranks have the same figures, so a stable order is the same on all of them.
    proposals.sort(key=lambda proposal: proposal.step_seconds)
    dense_ones = [p for p in proposals if is_dense(p.hook)][:_DENSE_TRIALS]
    tried = [p for i, p in enumerate(proposals) if i < trials or p in dense_ones]
    others = [p for p in proposals if p not in tried]
    for i, p in enumerate(tried):
        seconds = measure_step(model, step, p.hook, p.bucket_cap_mb, group, repeats)
        needed = accumulation(computing.seconds, seconds, overhead, _MOST_BACKWARDS)
        tried[i] = replace(p, step_seconds=seconds, accumulate=needed, is_measured=True)
    model.zero_grad(set_to_none=True)
    tried.sort(key=lambda proposal: proposal.step_seconds)
    dense = min(p.step_seconds for p in tried if is_dense(p.hook))
    return Advice([*tried, *others], computing.seconds, sum(computing.bytes), dense, overhead)


def _candidates() -> list[HookOptions]:
    import torch

    from q7x2.hooks.options import Allreduce, PowerSGD, Quantize

    return [
        Allreduce(),
        Allreduce(dtype=torch.bfloat16),
        Quantize("int8"),
        Quantize("hadamard+int4:g=128"),
        PowerSGD(rank=8, start_iter=0),
        PowerSGD(rank=4, start_iter=0),
    ]


def is_dense(hook: HookOptions) -> bool:
    """Whether the hook compresses nothing."""
    from q7x2.hooks.options import Allreduce

    return isinstance(hook, Allreduce) and hook.dtype is None


def _proposals(
    hook: HookOptions,
    computing: Computing,
    reducing: Reducing,
    buckets_mb: Sequence[float],
    cores: float,
    overhead: float,
) -> list[Proposal]:
    total = sum(computing.bytes)
    proposals = []
    seen = set()
    for size in sorted(buckets_mb):
        buckets = buckets_of(computing.bytes, round(size * (1 << 20)), computing.ready)
        if len(buckets) in seen:  # larger caps make no other buckets
            continue
        seen.add(len(buckets))
        seconds = step_seconds(computing, reducing, buckets, cores)
        alone = reducing.per_bucket * len(buckets) + reducing.per_byte * total
        proposals.append(
            Proposal(
                hook,
                size,
                seconds,
                alone,
                accumulation(computing.seconds, seconds, overhead, _MOST_BACKWARDS),
                max(1, math.ceil(alone / (overhead * computing.seconds))),
            )
        )
    return proposals
