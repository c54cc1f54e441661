"""What the options of a hook change: one option at a time, beside the hook without it.

The order is that of measurement: a study that is stopped has the first ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import q7x2
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.train.methods import (
    ADAM,
    BY_LABEL,
    TORCH_POWERSGD,
    UNCOMPRESSED,
    AddHook,
    MakePolicy,
    Method,
    Recipe,
    none,
    ours,
)
from benchmarks.studies.train.tasks import TASKS


@dataclass(frozen=True)
class Variant(Method):
    """Attributes:
    of: The label of the method that it changes in one thing.
    """

    of: str = ""


# Other optimizers without loss, with which hooks that need them are compared.
_FROZEN = "momentum in fp32"
_AVERAGED = "AdamW of the momentum"
_AVERAGED_LATE = "AdamW of the momentum after 100 steps"


def _changed(
    label: str, of: str, hook: q7x2.hooks.HookOptions, policy: MakePolicy | None = None
) -> Variant:
    return Variant(label, "q7x2", ours(hook, policy), tasks=("gpt",), of=of)


def _following(label: str, of: str, hook: q7x2.hooks.HookOptions) -> Variant:
    """Residuals follow the learning rate."""

    def make(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
        optimizer = TASKS["gpt"](recipe).optimizer(ddp.parameters())
        q7x2.attach(ddp, hook, optimizer=optimizer)
        return optimizer

    return Variant(label, "q7x2", none, optimizer=make, tasks=("gpt",), of=of)


def _codec_or_hook(given: str | q7x2.hooks.HookOptions) -> dict[str, Any]:
    return {"codec" if isinstance(given, str) else "hook": given}


def _adam_of(
    label: str,
    of: str,
    compress: str | q7x2.hooks.HookOptions,
    base: str = _FROZEN,
    refresh_every: int | None = None,
) -> Variant:
    """The mean momentum, compressed, with second moments that stay as they are."""

    def make(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
        return q7x2.optim.OneBitAdam(
            ddp,
            recipe["lr"],
            weight_decay=0.01,
            start_iter=int(0.15 * recipe["steps"]),
            refresh_every=refresh_every,
            **_codec_or_hook(compress),
        )

    return Variant(label, "q7x2", none, optimizer=make, tasks=("gpt",), uncompressed=base, of=of)


def _after_momentum(label: str, of: str, hook: q7x2.hooks.HookOptions, base: str) -> Variant:
    """A hook that has the momentum, so that the task's AdamW needs none."""

    def make(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.AdamW(ddp.parameters(), recipe["lr"], betas=(0.0, 0.95), fused=True)

    return Variant(
        label, "q7x2", ours(hook), optimizer=make, tasks=("gpt",), uncompressed=base, of=of
    )


def _lion(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
    """At the learning rate of signSGD, and ten times the decay of AdamW."""
    return q7x2.optim.DistributedLion(ddp, 3e-4, weight_decay=0.1)


def _byte_embedding(hook: q7x2.hooks.HookOptions) -> q7x2.Compose:
    """The embedding, which is the output's matrix too, by int8."""
    return q7x2.Compose({"embedding.weight": q7x2.Quantize("int8"), "*": hook})


_INT4 = "int4, groups of 512"
_ROTATED = "hadamard+int4:g=128"
_WITHOUT = ", no error feedback"
# By label, what several options are tried with.
_HOOKS: dict[str, q7x2.hooks.HookOptions] = {
    _ROTATED: q7x2.Quantize(_ROTATED),
    "PowerSGD 4": q7x2.PowerSGD(rank=4),
    "PowerSGD 8": q7x2.PowerSGD(rank=8),
    "top 1 %": q7x2.TopK(0.01),
    "top 1 %, whole buckets": q7x2.TopK(0.01, per_parameter=False),
    "1-bit SGD": q7x2.OneBit(),
}
_THREE = (_ROTATED, "PowerSGD 4", "top 1 %")


def _add_at_once(add: AddHook, ddp: DistributedDataParallel, _: bool) -> q7x2.hooks.Attached | None:
    return add(ddp, True)


def _quantized(codec: str, of: str = _INT4, label: str = "", **options: Any) -> Variant:
    return _changed(label or codec, of, q7x2.Quantize(codec, **options))


def _embedded(of: str) -> Variant:
    return _changed(f"{of}, embedding by int8", of, _byte_embedding(_HOOKS[of]))


def _of_momentum(of: str) -> Variant:
    return _adam_of(f"{of} of the momentum", of, _HOOKS[of])


def _ef21(of: str) -> Variant:
    return _changed(f"EF21, {of}", of, q7x2.EF21(**_codec_or_hook(_HOOKS[of]), momentum=0.0))


def _ef21_of_momentum(of: str, base: str) -> Variant:
    hook = q7x2.EF21(**_codec_or_hook(_HOOKS[of]), momentum=0.9)
    return _after_momentum(f"EF21 of the momentum, {of}", of, hook, base)


# Each stands for the hook's default beside which its variants are judged.
DEFAULTS = (
    BY_LABEL["int8"],
    BY_LABEL["int6"],
    Method(_INT4, "q7x2", ours(q7x2.Quantize("int4:g=512"))),
    *(BY_LABEL[label] for label in ("PowerSGD 8", "PowerSGD 4", "top 1 %")),
    *(BY_LABEL[label] for label in ("1-bit SGD", "1-bit Adam", "signSGD")),
)
VARIANTS = (
    _quantized(_ROTATED),
    _quantized("int4:g=128"),
    _quantized("hadamard+int4:g=512", label="hadamard+int4"),
    _quantized("int4:g=32"),
    _quantized(_ROTATED, _ROTATED, _ROTATED + _WITHOUT, use_error_feedback=False),
    _quantized(
        *("int4:g=512", _INT4, "int4, whole buckets"), per_parameter=False, compress_vectors=True
    ),
    _changed(
        "int8, or hadamard+int2:g=128 if norms settle",
        "int8",
        q7x2.Quantize("int8"),
        lambda: q7x2.policy.Accordion("int8", "hadamard+int2:g=128", decide_every=20),
    ),
    _changed(
        "PowerSGD 8, or 2 if norms settle",
        "PowerSGD 8",
        q7x2.PowerSGD(rank=8),
        lambda: q7x2.policy.Accordion(8, 2, decide_every=20),
    ),
    *map(_embedded, ("PowerSGD 4", "PowerSGD 8", "top 1 %", "top 1 %, whole buckets")),
    _adam_of(
        "top 1 % of the momentum, whole buckets",
        "top 1 % of the momentum",
        _HOOKS["top 1 %, whole buckets"],
    ),
    _embedded("1-bit SGD"),
    *map(_of_momentum, ("PowerSGD 4", "PowerSGD 8", "top 1 %")),
    _adam_of(_FROZEN, ADAM, "fp32", ADAM),
    _adam_of("1-bit Adam, refreshed every 20", "1-bit Adam", "onebit", ADAM, refresh_every=20),
    _adam_of(f"{_ROTATED} of the momentum", _ROTATED, _ROTATED),
    *map(_ef21, _THREE),
    *(_following(f"{of}, following the rate", of, _HOOKS[of]) for of in _THREE),
    _after_momentum(_AVERAGED, UNCOMPRESSED, q7x2.EF21("fp32", momentum=0.9), UNCOMPRESSED),
    _after_momentum(
        _AVERAGED_LATE,
        UNCOMPRESSED,
        q7x2.EF21(hook=q7x2.Quantize("fp32", start_iter=100), momentum=0.9),
        UNCOMPRESSED,
    ),
    _ef21_of_momentum("PowerSGD 4", _AVERAGED_LATE),
    _ef21_of_momentum("PowerSGD 8", _AVERAGED_LATE),
    _ef21_of_momentum("top 1 %", _AVERAGED),
    Variant("distributed Lion", "q7x2", none, optimizer=_lion, tasks=("gpt",), of="signSGD"),
    *(
        _changed(f"PowerSGD 4, reset every {n}", "PowerSGD 4", q7x2.PowerSGD(rank=4, reset_every=n))
        for n in (20, 100)
    ),
    _changed(
        "PowerSGD 4" + _WITHOUT, "PowerSGD 4", q7x2.PowerSGD(rank=4, use_error_feedback=False)
    ),
    _changed("top 1 %, whole buckets", "top 1 %", _HOOKS["top 1 %, whole buckets"]),
    _quantized("hadamard+onebit:g=64", "1-bit SGD", start_iter=q7x2.OneBit().start_iter),
)

# Uncompressed training with the two second moments' factors: 0.95 and 0.999.
CONTROLS = (UNCOMPRESSED, ADAM)


def at_once(label: str) -> str:
    """The label of that method when it compresses from the first step."""
    return f"{label}, from the first step"


# Hooks that by default leave the first steps of a training as they are, and one that is not ours:
# the part "speed" has them compress from the first step (PyTorch's from the third).
AT_ONCE = {
    at_once(label): Method(
        at_once(label),
        BY_LABEL[label].backend,
        partial(_add_at_once, BY_LABEL[label].add),
        one_bucket=BY_LABEL[label].one_bucket,
        tasks=("gpt",),
    )
    for label in ("PowerSGD 8", "PowerSGD 4", TORCH_POWERSGD, "1-bit SGD", "top 1 %")
}
STUDIED: dict[str, Method] = {m.label: m for m in (*DEFAULTS, *VARIANTS)}
EVERY: dict[str, Method] = {**BY_LABEL, **STUDIED, **AT_ONCE}

# What the part "held-out-study" trains: hooks at their defaults, chosen by other trainings.
HELD_OUT = (
    "int8",
    "int6",
    "hadamard+int4:g=128",
    "PowerSGD 8",
    "PowerSGD 4",
    "top 1 %",
    "1-bit SGD",
    "1-bit Adam",
)


# On the other text alone: what README.md gives a speed for.
PRICED = ("int4:g=128", *AT_ONCE)


def with_references(labels: Iterable[str]) -> list[str]:
    """The controls, and each of the labels behind the methods that it is compared with."""
    found = list(CONTROLS)
    for label in labels:
        if label in CONTROLS:
            continue
        method = EVERY[label]
        beside = [method.of] if isinstance(method, Variant) else []
        found += [*with_references([*beside, method.uncompressed]), label]
    return list(dict.fromkeys(found))
