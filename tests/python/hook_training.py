"""A small model and its training, for tests of communication hooks."""

from __future__ import annotations

import copy
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits


class Net(nn.Module):
    """Matrices of equal and of other shapes, a convolution, vectors, an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 16, 5, padding=2)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.extra = nn.Linear(64, 64)
        self.nothing = nn.Parameter(torch.zeros(0))
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        x = x + self.convolution(x.unsqueeze(1)).mean(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(self.norm(x)))
        if extra:
            x = x + torch.tanh(self.extra(x))
        return self.last(x) + self.nothing.sum()


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net().to(dtype)


def net_of_fsdp(seed: int = 0) -> Net:
    """FSDP2 reduces no empty parameters."""
    model = net(seed)
    model.nothing.requires_grad_(False)
    return model


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor, which may be a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# For every line of tests that all hooks must pass.
HOOKS = {
    "dense": q7x2.Allreduce(),
    "bf16": q7x2.Allreduce(dtype=torch.bfloat16),
    "blocks": q7x2.BlockSparse(),
    "powersgd": q7x2.PowerSGD(rank=4, start_iter=0),
    "rank 1": q7x2.PowerSGD(rank=1, start_iter=0),
    "alternating": q7x2.PowerSGD(rank=2, alternating=True, start_iter=0),
    "cold": q7x2.PowerSGD(rank=2, warm_start=False, start_iter=0),
    "reset": q7x2.PowerSGD(rank=2, reset_every=3, start_iter=0),
    "biased": q7x2.PowerSGD(rank=2, use_error_feedback=False, start_iter=0),
    "bursts": q7x2.PowerSGD(rank=2, start_iter=2, burst_every=3, full_precision=["layers.1.*"]),
    "batched": q7x2.PowerSGD(rank=4, batched=True, start_iter=0),
    "int8": q7x2.Quantize("int8"),
    "int4": q7x2.Quantize("int4:g=128:sr", full_precision=["*.bias"], burst_every=4),
    "topk": q7x2.TopK(0.1, values="int8", start_iter=0),
    "sampled": q7x2.TopK(0.1, selection="sampled", start_iter=4, warmup_stages=2),
    "dgc": q7x2.TopK(0.1, momentum=0.5, clip_norm=1.0, start_iter=0),
    "ef21": q7x2.EF21("int4:g=128", momentum=0.5),
    "onebit": q7x2.OneBit(start_iter=3),
    "cyclic": q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.1}, burst_every=4),
    "sign": q7x2.SignSGD(),
    "composed": q7x2.Compose(
        {
            "layers.1.*": q7x2.TopK(0.1, start_iter=0),
            "layers.*.weight": q7x2.PowerSGD(rank=2, start_iter=0),
            "last.*": q7x2.Quantize("int4"),
            "*": q7x2.Allreduce(),
        }
    ),
}

# Of Net's 18000 parameters: seven buckets or so.
SMALL_BUCKETS = {"bucket_cap_mb": 0.01}
BUCKETS = {"one": {}, "many": SMALL_BUCKETS}


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 64, generator=generator)
    return x.to(dtype), torch.tanh(x[:, :8] * x[:, 8:16]).to(dtype)


def backward(
    ddp: nn.Module, step: int, scale: float = 1.0, rank: int | None = None, **forward: Any
) -> None:
    dtype = next(ddp.parameters()).dtype
    x, y = batch(dist.get_rank() if rank is None else rank, step, dtype)
    (nn.functional.mse_loss(ddp(x, **forward).float(), y.float()) * scale).backward()


def train(ddp: DDP, optimizer: torch.optim.Optimizer, steps: range, **forward: Any) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(ddp, step, **forward)
        optimizer.step()


def sgd(ddp: nn.Module, hook: Any = None) -> torch.optim.Optimizer:
    if isinstance(hook, q7x2.SignSGD):  # steps of one size, with momentum already
        return torch.optim.SGD(ddp.parameters(), lr=2e-3)
    return torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def attached(
    hook: Any, model: nn.Module | None = None, attach: dict[str, Any] | None = None, **options: Any
) -> tuple[DDP, q7x2.hooks.Attached]:
    ddp = DDP(copy.deepcopy(model) if model is not None else net(), **options)
    return ddp, q7x2.attach(ddp, hook, **(attach or {}))


def exact() -> dict[str, Any]:
    """Arguments of `attach` with which a step can be undone exactly: a scaler, of scale 1."""
    return {"scaler": torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**9)}


class Given(nn.Module):
    """Its gradients are the tensors that it is called with."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(64, 64) for _ in range(count))

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.layers, gradients, strict=True))


def linear(seed: int = 0) -> nn.Linear:
    """A model of one weight, whose gradient `give` sets."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(32, 16, bias=False)


def give(ddp: DDP, gradient: torch.Tensor) -> torch.Tensor:
    """A backward whose gradient of the one weight is `gradient` on this rank; returns the mean."""
    ddp.zero_grad()
    (ddp(torch.eye(32)).t() * gradient).sum().backward()
    return ddp.module.weight.grad


def gradient_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 32, generator=generator)


def parameters_of(ddp: nn.Module) -> list[torch.Tensor]:
    return [p for p in ddp.parameters() if p.numel()]


def gradients(ddp: DDP) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in ddp.module.named_parameters() if p.grad is not None}


def everybodys_objects(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.double()
    dist.all_reduce(total)
    return total


def residuals(hook: q7x2.hooks.Attached) -> dict[str, torch.Tensor]:
    (local,) = hook.state_dict()["local"].values()
    return local["residual"]


def assert_states_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["step"] == other["step"]
    for part in ("shared", "local"):
        _assert_trees_equal(one[part], other[part], (part,))


def _assert_trees_equal(one: Any, other: Any, path: tuple[str, ...]) -> None:
    if isinstance(one, torch.Tensor):
        assert_bits(one, other, path)
        return
    if not isinstance(one, dict):
        assert one == other, path
        return
    assert one.keys() == other.keys(), path
    for key in one:
        _assert_trees_equal(one[key], other[key], (*path, key))
