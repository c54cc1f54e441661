"""Random trainings with a hook in which ranks contribute nothing to some gradients, from a seed.

A case is a model of parameters of random shapes, a hook, what DDP is asked for, and for each step
and rank the parameters that the rank uses. Every rank makes the same cases from the seed.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import q7x2
import torch
from torch import nn

# Every hook that keeps what it does not send, and those that lose nothing.
HOOKS: dict[str, Any] = {
    "dense": q7x2.Allreduce(),
    "blocks": q7x2.BlockSparse(),
    "rank 1": q7x2.PowerSGD(rank=1, start_iter=0, min_compression_rate=1),
    "rank 2": q7x2.PowerSGD(rank=2, start_iter=1, min_compression_rate=0.5),
    "fp32 factors": q7x2.PowerSGD(rank=3, start_iter=0, min_compression_rate=1, factors="fp32"),
    "fp16 factors": q7x2.PowerSGD(rank=2, start_iter=0, min_compression_rate=1, factors="fp16"),
    "alternating": q7x2.PowerSGD(
        rank=2, start_iter=0, min_compression_rate=0.5, alternating=True, factors="fp32"
    ),
    "alternating bf16": q7x2.PowerSGD(
        rank=1, start_iter=0, min_compression_rate=1, alternating=True
    ),
    "cold": q7x2.PowerSGD(rank=2, start_iter=0, min_compression_rate=1, warm_start=False),
    "reset": q7x2.PowerSGD(rank=2, start_iter=0, min_compression_rate=1, reset_every=2),
    "bursts": q7x2.PowerSGD(rank=2, start_iter=1, min_compression_rate=1, burst_every=3),
    "by name": q7x2.PowerSGD(
        rank={"parts.0": 2, "parts.1": 0, "*": 1}, start_iter=0, min_compression_rate=1
    ),
    "batched": q7x2.PowerSGD(rank=2, batched=True, start_iter=0),
    "batched fp32": q7x2.PowerSGD(
        rank=4, batched=True, start_iter=1, factors="fp32", burst_every=4
    ),
    "int8": q7x2.Quantize("int8"),
    "int4": q7x2.Quantize("int4"),
    "int2": q7x2.Quantize("int2:g=32", compress_vectors=True),
    "minmax": q7x2.Quantize("int4:g=32:minmax", per_parameter=False, burst_every=3),
    "fp8": q7x2.Quantize("fp8_e4m3:g=32"),
    "bf16": q7x2.Quantize("bf16", compress_vectors=True),
    "topk": q7x2.TopK(0.1, start_iter=0),
    "topk int8": q7x2.TopK(0.1, values="int8", start_iter=2, warmup_stages=1),
    "sampled": q7x2.TopK(0.2, selection="sampled", start_iter=0),
    "dgc": q7x2.TopK(0.1, momentum=0.5, start_iter=0),
    "dgc clipped": q7x2.TopK(0.2, momentum=0.5, clip_norm=1.0, start_iter=0),
    "onebit": q7x2.OneBit(start_iter=1),
    "onebit all": q7x2.OneBit(start_iter=0, compress_vectors=True),
    "cyclic": q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.1}, burst_every=4),
    "ef21": q7x2.EF21("int4:g=32", momentum=0.5),
    "ef21 powersgd": q7x2.EF21(
        hook=q7x2.PowerSGD(rank=2, start_iter=0, min_compression_rate=1), momentum=0.0
    ),
    "composed": q7x2.Compose(
        {
            "parts.0": q7x2.TopK(0.1, start_iter=0),
            "parts.1": q7x2.PowerSGD(rank=1, start_iter=0, min_compression_rate=1),
            "parts.2": q7x2.OneBit(start_iter=0),
            "*": q7x2.Quantize("int4:g=32"),
        }
    ),
}

# Hooks whose gradients a policy may leave whole or skip.
TREATABLE = ("rank 1", "fp32 factors", "bursts", "int8", "int2", "topk", "onebit", "cyclic")


def momentum_of(hook: Any) -> float | None:
    """The factor of the momentum that the hook sends; None: it sends gradients."""
    momentum = getattr(hook, "momentum", None)
    return momentum if momentum or isinstance(hook, q7x2.EF21) else None


class Given(nn.Module):
    """Its gradients are the tensors that it is called with; None: the parameter is not used."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(shape, dtype=dtype) for shape in shapes)

    def forward(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        used = [(p * g).sum() for p, g in zip(self.parts, gradients, strict=True) if g is not None]
        return torch.stack(used).sum()


@dataclasses.dataclass(frozen=True)
class Case:
    """``uses[step][rank][i]``: the rank contributes to the i-th gradient. ``lengths``: the steps of
    each rank, which differ with ``join``. ``treated``: by step, what a policy does to ``parts.0``.
    ``apart``: the ranks count as of different hosts, between which more is compressed.
    """

    seed: int
    hook: str
    backend: str
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    ddp: dict[str, Any]
    scaler: bool
    join: bool
    lengths: list[int]
    uses: list[list[list[bool]]]
    treated: dict[int, q7x2.policy.ParameterPolicy]
    scale: float
    kind: str
    apart: bool

    def gradient(self, step: int, rank: int, i: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(
            self.seed * 7919 + 1000 * (0 if self.kind == "constant" else step) + 10 * rank + i
        )
        gradient = torch.randn(self.shapes[i], generator=generator, dtype=torch.float64)
        if self.kind == "low rank" and gradient.dim() == 2:
            gradient = torch.outer(gradient[:, 0], gradient[0])
        if self.kind == "heavy tails":
            gradient = gradient**5
        return (gradient * self.scale * (1 + rank)).to(self.dtype)

    def __str__(self) -> str:
        ddp = ", ".join(f"{name}={value}" for name, value in self.ddp.items())
        return (
            f"case of seed {self.seed}: {self.hook} over {self.backend}, {self.dtype}, "
            f"shapes {self.shapes}, {self.kind}, scale {self.scale}, steps {self.lengths}, "
            f"join={self.join}, scaler={self.scaler}, treated={self.treated}, apart={self.apart}, "
            f"{ddp}"
        )


def random_case(seed: int, ranks: int, backends: tuple[str, ...] = ("q7x2", "gloo")) -> Case:
    chance = random.Random(seed)
    hook = chance.choice(list(HOOKS))
    shapes = [_shape(chance) for _ in range(chance.randint(3, 5))]
    # Momenta change in steps whose results a rank that has joined does not see.
    join = chance.random() < 0.15 and momentum_of(HOOKS[hook]) is None
    steps = chance.randint(3, 6)
    lengths = [chance.randint(1, steps) if join else steps for _ in range(ranks)]
    idle = chance.choice([0.2, 0.5, 0.8])
    away = {rank for rank in range(ranks) if chance.random() < 0.3}  # of the first parameter
    uses = []
    for _ in range(steps):
        absent = {rank for rank in range(ranks) if chance.random() < 0.15}
        unused = {i for i in range(len(shapes)) if chance.random() < 0.1}
        uses.append(
            [
                [
                    rank not in absent
                    and i not in unused
                    and not (i == 0 and rank in away)
                    and chance.random() >= idle
                    for i in range(len(shapes))
                ]
                for rank in range(ranks)
            ]
        )
    treated = {}
    # A policy decides before a forward, and a rank that has joined makes none.
    if hook in TREATABLE and not join and chance.random() < 0.4:
        treated = {
            0: q7x2.policy.ParameterPolicy(skip=True),
            steps // 2: q7x2.policy.ParameterPolicy(),
        }
        if chance.random() < 0.5:
            treated[steps - 1] = q7x2.policy.ParameterPolicy(whole=True)
    ddp: dict[str, Any] = {"gradient_as_bucket_view": chance.random() < 0.3}
    if chance.random() < 0.5:
        ddp["bucket_cap_mb"] = chance.choice([0.001, 0.004])
    if chance.random() < 0.5:
        ddp["find_unused_parameters"] = True
    needs_q7x2 = hook == "blocks"
    is_narrow = hook == "fp16 factors"  # which overflow beyond 65,504
    has_scaler = not join and chance.random() < 0.3
    exponent = chance.randint(-3, 3)
    return Case(
        seed=seed,
        hook=hook,
        backend=backends[0] if needs_q7x2 or chance.random() < 0.75 else backends[-1],
        shapes=shapes,
        dtype=torch.float64 if chance.random() < 0.1 else torch.float32,
        ddp=ddp,
        scaler=has_scaler and not is_narrow,
        join=join,
        lengths=lengths,
        uses=uses,
        treated=treated,
        scale=10.0 ** (min(exponent, 0) if is_narrow else exponent),
        kind=chance.choice(["normal", "constant", "low rank", "heavy tails"]),
        apart=chance.random() < 0.4,
    )


def _shape(chance: random.Random) -> tuple[int, ...]:
    dimensions = chance.choice([1, 2, 2, 2, 2, 3])
    if dimensions == 3:
        return chance.randint(1, 8), chance.randint(1, 4), chance.randint(1, 5)
    return tuple(chance.choice([1, 3, 8, 17, 32, 48]) for _ in range(dimensions))
