"""DDP with every hook, and FSDP2, on a device: gradients as on the CPU."""

from __future__ import annotations

import math

import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_calls import descend
from hook_training import HOOKS, SMALL_BUCKETS, Net
from pairs import each_value, nightly
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

pytestmark = stand_in.needs_accelerator

# Matrix products run in q7x2's own kernels on the CPU, and in torch's on a device.
ROUNDED_OTHERWISE = {
    "composed",
    *(name for name, hook in HOOKS.items() if isinstance(hook, q7x2.PowerSGD)),
}


# Variants of PowerSGD that ask nothing else of a device.
VARIANTS = ["rank 1", "biased", "bursts"]
OTHERS = [None, *(name for name in HOOKS if name not in VARIANTS)]


class Weighted(Net):
    """A net whose parameters have gradients that are given: no rounding on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = self.layers[:2]

    def forward(self, rank: int, step: int) -> torch.Tensor:
        total = torch.zeros((), device=next(self.parameters()).device)
        for i, parameter in enumerate(self.parameters()):
            generator = torch.Generator().manual_seed(1000 * step + 100 * rank + i)
            weights = torch.randn(parameter.shape, generator=generator)
            total = total + (parameter * weights.to(parameter.device)).sum()
        return total


def _gradients(device: str, hook: str | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Weighted().to(device)
    ddp = DDP(model, **SMALL_BUCKETS)
    if hook is not None:
        q7x2.attach(ddp, HOOKS[hook])
    seen = []
    for step in range(4):
        ddp.zero_grad()
        ddp(dist.get_rank(), step).backward()
        seen += [parameter.grad.clone() for parameter in model.parameters()]
    return [gradient.cpu() for gradient in seen]


def _compare(device: str, hooks: list[str | None]) -> None:
    for hook in hooks:
        results, targets = _gradients(device, hook), _gradients("cpu", hook)
        for i, (result, target) in enumerate(zip(results, targets, strict=True)):
            if hook in ROUNDED_OTHERWISE:
                if getattr(HOOKS[hook], "factors", "bf16") == "fp32":
                    torch.testing.assert_close(result, target, rtol=1e-3, atol=1e-4)
                else:
                    # On one host the second factor of the CPU's tensors is added unrounded.
                    assert (result - target).norm() <= 0.05 * target.norm(), (i, hook)
            else:
                assert_bits(result, target, f"gradient {i} with the hook {hook}")


@pytest.mark.parametrize(
    "part", [*range(3), nightly(None, "others of PowerSGD take the same ways on a device")]
)
def test_ddp_has_the_gradients_of_the_cpu(
    part: int | None, device_pool, shared: str, device: str
) -> None:
    hooks = VARIANTS if part is None else OTHERS[part::3]
    stand_in.run(device_pool(2), _compare, shared, device, hooks=hooks)


def _sharded(
    device: str, shape: tuple[int, ...], options: q7x2.Sharded | None
) -> tuple[list[torch.Tensor], dist.ProcessGroup]:
    """The weights, and the group that has shared them."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)).to(device)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    between = mesh["replicas"].get_group() if len(shape) > 1 else None
    for layer in (model[0], model[2], model):
        # Of a mesh of two dimensions, q7x2 compresses what passes in the other one.
        fully_shard(layer, mesh=mesh if options is None else mesh["shards"])
    if options is not None:
        q7x2.attach(model, options, replica_group=between)
    descend(model, model, device, steps=2, width=16)
    weights = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    return weights, mesh["shards"].get_group()


def _compare_sharded(
    device: str, shape: tuple[int, ...], options: q7x2.Sharded | None, is_direct: bool
) -> None:
    results, group = _sharded(device, shape, options)
    ways = {way["path"] for way in q7x2.describe(group).device_paths}
    targets, _ = _sharded("cpu", shape, options)
    for result, target in zip(results, targets, strict=True):
        torch.testing.assert_close(result, target)
    assert ("direct" in ways) == is_direct


SHARDED = {
    "fsdp": ((2,), None),
    "fsdp compressed": ((2,), q7x2.Sharded(gradients="int4", weights="int8")),
    "hsdp": ((2, 2), None),
    "hsdp compressed": ((2, 2), q7x2.Sharded(replica_hook=q7x2.Quantize("int8"))),
}


@pytest.mark.parametrize(
    ("case", "path"),
    each_value(SHARDED.keys(), [None, pytest.param("auto", marks=stand_in.needs_driver)]),
)
def test_fsdp2_trains_as_on_the_cpu(
    path: str | None, case: str, new_pool, shared: str, device: str
) -> None:
    """On ranks of its own: torch keeps what it derives of a mesh, also when its groups end."""
    shape, options = SHARDED[case]
    stand_in.run(
        new_pool(math.prod(shape)),
        _compare_sharded,
        shared,
        device,
        device_path=path,
        shape=shape,
        options=options,
        is_direct=path is not None,
    )
