"""What is compared: a hook over a backend, each at its documented default.

Hooks begin late or mildly by default. Where a few steps stand for a training's middle, they begin
at once. A new hook is a new line of METHODS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import q7x2
import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.train import wire

AddHook = Callable[[DistributedDataParallel, bool], "q7x2.hooks.Attached | None"]
MakePolicy = Callable[[], q7x2.policy.Policy]
Recipe = dict[str, Any]
MakeOptimizer = Callable[[DistributedDataParallel, Recipe], torch.optim.Optimizer]


@dataclass(frozen=True)
class Method:
    """Attributes:
    add: Adds the hook to a model, which begins at once if its second argument says so.
    one_bucket: The hook does not stand several buckets.
    optimizer: What it needs in place of the task's own, made for the task's recipe.
    tasks: Those that it trains.
    uncompressed: The method whose final loss its own is compared with: the same optimizer on
        whole gradients.
    message_bytes: What goes into all-reduces a step, from the parameters' shapes; None where
        it depends on the gradients.
    """

    label: str
    backend: str
    add: AddHook
    message_bytes: Callable[[list[wire.Shape]], float] | None = None
    one_bucket: bool = False
    optimizer: MakeOptimizer | None = None
    tasks: tuple[str, ...] = ("gpt", "digits")
    uncompressed: str = "DDP, q7x2"


def none(_: DistributedDataParallel, at_once: bool) -> None:
    return None


def ours(options: q7x2.hooks.HookOptions, policy: MakePolicy | None = None) -> AddHook:
    late = {"start_iter": 0} if hasattr(options, "start_iter") else {}

    def add(ddp: DistributedDataParallel, at_once: bool) -> q7x2.hooks.Attached:
        hook = replace(options, **late) if at_once else options  # type: ignore[type-var]
        return q7x2.attach(ddp, hook, policy=policy() if policy else None)

    return add


def _torch_cast(dtype: torch.dtype) -> AddHook:
    """PyTorch's own, under a name for which DDP does not insist on NCCL."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def compress(group: Any, bucket: Any) -> Any:
        return default_hooks._compress_hook(dtype, group, bucket)

    compress.__annotations__.clear()  # postponed ones are not what DDP compares them with

    def add(ddp: DistributedDataParallel, at_once: bool) -> None:
        ddp.register_comm_hook(ddp.process_group, compress)

    return add


def _torch_powersgd(rank: int) -> AddHook:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def add(ddp: DistributedDataParallel, at_once: bool) -> None:
        group: ProcessGroup = ddp.process_group
        # 2 is the least that it takes. Its default of 1000 is most of the training here, so it
        # begins when ours does.
        start = 2 if at_once else q7x2.PowerSGD().start_iter
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=rank, start_powerSGD_iter=start
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return add


def _one_bit_adam(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
    # The paper's share of a training in full precision, or three times the learning rate's warm-up.
    start_iter = int(0.15 * recipe["steps"]) if recipe.get("whole_training") else 60
    return q7x2.optim.OneBitAdam(ddp, recipe["lr"], weight_decay=0.01, start_iter=start_iter)


def _adam(ddp: DistributedDataParallel, recipe: Recipe) -> torch.optim.Optimizer:
    """What 1-bit Adam is with whole gradients; the tasks' own one forgets its moments sooner."""
    return torch.optim.AdamW(ddp.parameters(), recipe["lr"], weight_decay=0.01)


def _sgd_at(lr: float | None) -> MakeOptimizer:
    """SGD without momentum, which the hook has; at the task's learning rate if `lr` is None."""
    return lambda ddp, recipe: torch.optim.SGD(ddp.parameters(), lr=lr or recipe["lr"])


_ROTATED = "hadamard+int4:g=128"
_CHOICES = ("int2", "int8")
ADAM = "DDP, q7x2, Adam 0.999"

METHODS = (
    Method("DDP, Gloo", "gloo", none, wire.dense(4)),
    Method("PyTorch fp16, Gloo", "gloo", _torch_cast(torch.float16), wire.dense(2)),
    Method("PyTorch bf16, Gloo", "gloo", _torch_cast(torch.bfloat16), wire.dense(2)),
    Method(
        "PyTorch PowerSGD 4, Gloo",
        "gloo",
        _torch_powersgd(4),
        wire.powersgd(4, factor_bytes=4),
        one_bucket=True,
    ),
    Method("DDP, q7x2", "q7x2", none, wire.dense(4)),
    Method(ADAM, "q7x2", none, optimizer=_adam, tasks=("gpt",), uncompressed=ADAM),
    Method("bf16", "q7x2", ours(q7x2.Allreduce(dtype=torch.bfloat16)), wire.dense(2)),
    Method("int8", "q7x2", ours(q7x2.Quantize("int8")), wire.grouped(8, 512)),
    Method("int6", "q7x2", ours(q7x2.Quantize("int6")), wire.grouped(6, 512)),
    Method("int4", "q7x2", ours(q7x2.Quantize("int4:g=128")), wire.grouped(4, 128)),
    Method(
        "int4 or int2 or int8",
        "q7x2",
        ours(q7x2.Quantize(_ROTATED), lambda: q7x2.policy.BitAllocation(_ROTATED, _CHOICES)),
    ),
    Method("1-bit SGD", "q7x2", ours(q7x2.OneBit())),
    Method(
        "1-bit Adam",
        "q7x2",
        none,
        optimizer=_one_bit_adam,
        tasks=("gpt",),
        uncompressed=ADAM,
    ),
    Method("signSGD", "q7x2", ours(q7x2.SignSGD()), optimizer=_sgd_at(3e-4)),
    Method("top 1 %", "q7x2", ours(q7x2.TopK(0.01))),
    Method("top 1 %, int8", "q7x2", ours(q7x2.TopK(0.01, values="int8"))),
    Method(
        "DGC 1 %",
        "q7x2",
        ours(q7x2.TopK(0.01, momentum=0.9)),
        optimizer=_sgd_at(None),
        tasks=("digits",),
    ),
    Method("PowerSGD 4", "q7x2", ours(q7x2.PowerSGD(rank=4)), wire.powersgd(4)),
    Method("PowerSGD 8", "q7x2", ours(q7x2.PowerSGD(rank=8)), wire.powersgd(8)),
    Method(
        "PowerSGD 4 alternating",
        "q7x2",
        ours(q7x2.PowerSGD(rank=4, alternating=True)),
        wire.powersgd(4, alternating=True),
    ),
    Method("PowerSGD 4, Gloo", "gloo", ours(q7x2.PowerSGD(rank=4)), wire.powersgd(4)),
)
BY_LABEL = {method.label: method for method in METHODS}

NOTHING_SENT = "fake"  # torch's backend whose collectives return at once, with wrong results
BASELINE = "DDP, Gloo"
UNCOMPRESSED = "DDP, q7x2"
# As fast as UNCOMPRESSED, so only their losses count.
ONLY_LOSSES = {method.uncompressed for method in METHODS} - {UNCOMPRESSED}
TORCH_POWERSGD = "PyTorch PowerSGD 4, Gloo"
POWERSGD = "PowerSGD 4"
