"""How often the host waits for a device in a step of training with a hook."""

from __future__ import annotations

from typing import Any

import q7x2
import stand_in
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = stand_in.needs_accelerator

HOOKS = {
    "powersgd": q7x2.PowerSGD(rank=2, start_iter=0, min_compression_rate=1),
    "alternating": q7x2.PowerSGD(rank=2, start_iter=0, alternating=True, min_compression_rate=1),
    "reset": q7x2.PowerSGD(rank=2, start_iter=0, reset_every=1, min_compression_rate=1),
    "batched": q7x2.PowerSGD(rank=2, start_iter=0, batched=True),
    "topk": q7x2.TopK(0.1, start_iter=0),
    "cyclic": q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.1}),
    "int4": q7x2.Quantize("int4"),
}


# Waits of a step with one bucket, beyond those without compression: flags of zeros, two checks for
# Inf and NaN, flags of lost rank before and after, numbers that go to the device or come from it.
MOST = 8


class Weighted(nn.Module):
    """Matrices, whose gradients are given."""

    def __init__(self, shapes: list[tuple[int, int]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrices = nn.ParameterList([torch.randn(shape) for shape in shapes])
        self.gradients = [torch.randn(shape).to("fake") for shape in shapes]

    def forward(self) -> torch.Tensor:
        products = [(p * g).sum() for p, g in zip(self.matrices, self.gradients, strict=True)]
        return torch.stack(products).sum()


def _waits_of_a_step(hook: Any, shapes: list[tuple[int, int]]) -> int:
    """After steps that make what stays."""
    ddp = DDP(Weighted(shapes).to("fake"), bucket_cap_mb=100)
    attached = q7x2.attach(ddp, hook)
    accelerator = stand_in.load()
    for step in range(3):
        torch.fake.synchronize()
        before = accelerator.host_waits()
        ddp().backward()
        assert attached.steps == step + 1  # the hook has nothing left to do
        waits: int = accelerator.host_waits() - before
    return waits


def _count(shapes: list[tuple[int, int]]) -> dict[str, int]:
    dense = _waits_of_a_step(q7x2.Allreduce(), shapes)
    return {name: _waits_of_a_step(hook, shapes) - dense for name, hook in HOOKS.items()}


def test_the_host_waits_as_often_for_many_parameters_as_for_few(device_pool, shared: str) -> None:
    pool = device_pool(2)
    few = [(16, 16), (16, 24)]
    many = [(rows, 24) for rows in (16, 24, 32)] * 2
    (for_few, _) = stand_in.run(pool, _count, shared, shapes=few)
    (for_many, _) = stand_in.run(pool, _count, shared, shapes=many)
    assert for_few == for_many
    assert max(for_many.values()) <= MOST, for_many
