"""Two trainings from the same weights: DDP, and DDP whose gathers overlap the next forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from hook_training import SMALL_BUCKETS, batch, net
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

# The reduce-scatter sums in the order of the all-reduce, whichever of these is taken.
RING = {"Q7X2_ALGO": "ring"}
ROUNDS_ONCE = {"Q7X2_ALGO": "sra,direct"}

# With nothing left to choose, the second step is one on shards.
FIXED = q7x2.overlap.OverlapOptions(chunk_bytes=4 << 20, window=2)

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups: vectors have another rate, and do not decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices}, {"params": vectors, "lr": 3e-3, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023: steps of the sign of a moving average; a user's own optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.sub_(torch.sign(0.9 * average + 0.1 * p.grad), alpha=group["lr"])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


class Lamb(Lion):
    """You et al., 2020, in short: the step of a parameter depends on its norm."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (p.norm() / p.grad.norm()), alpha=group["lr"])


class Pair:
    """DDP as it is, and DDP with overlap: the same model, optimizer and schedule.

    Args:
        make: The optimizer of a model.
        model: Makes the model; equal on all ranks.
    """

    def __init__(
        self,
        make: MakeOptimizer = momentum,
        model: Callable[[], nn.Module] = net,
        overlap: Any = FIXED,
        **ddp: Any,
    ) -> None:
        options = SMALL_BUCKETS | ddp
        self.plain, self.ours = DDP(model(), **options), DDP(model(), **options)
        self.optimizers = make(self.plain), make(self.ours)
        self.attached = q7x2.overlap.attach(self.ours, self.optimizers[1], overlap)

    def both(self) -> Iterable[tuple[DDP, torch.optim.Optimizer]]:
        return zip((self.plain, self.ours), self.optimizers, strict=True)

    def train(self, steps: range, **forward: Any) -> None:
        for step in steps:
            for ddp, optimizer in self.both():
                loss_of(ddp, step, **forward).backward()
                optimizer.step()
                optimizer.zero_grad()

    def assert_equal(self, case: object = "") -> None:
        self.attached.flush()
        ours = dict(self.ours.named_parameters())
        for name, p in self.plain.named_parameters():
            assert_bits(ours[name], p, (case, name))


def loss_of(ddp: nn.Module, step: int, **forward: Any) -> torch.Tensor:
    dtype = next(ddp.parameters()).dtype
    x, y = batch(dist.get_rank(), step, dtype)
    return nn.functional.mse_loss(ddp(x, **forward).float(), y.float())


def assert_equal_states(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Of optimizers. The state of empty parameters, which nothing depends on, may be missing."""
    assert one["param_groups"] == other["param_groups"]
    empty = {
        index
        for index, state in other["state"].items()
        if any(isinstance(value, torch.Tensor) and not value.numel() for value in state.values())
    }
    assert one["state"].keys() - empty == other["state"].keys() - empty
    for index in one["state"].keys() - empty:
        state = one["state"][index]
        assert state.keys() == other["state"][index].keys()
        for key, value in state.items():
            expected = other["state"][index][key]
            if isinstance(value, torch.Tensor):
                assert_bits(value, expected, (index, key))
            else:
                assert value == expected
