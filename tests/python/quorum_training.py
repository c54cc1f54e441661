"""A small training by a quorum, and what one process makes of the same batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import q7x2
import torch
from torch import nn

PLAIN: dict[str, Any] = {"timeout": 40.0, "grace": 0.2}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))


def batch(part: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1000 * step + part))
    return x, torch.tanh(x[:, :8])


def made(**options: Any) -> tuple[nn.Module, q7x2.late.QuorumSGD]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, q7x2.late.QuorumSGD(model, optimizer, **PLAIN | options)


def backward(model: nn.Module, quorum: q7x2.late.QuorumSGD) -> None:
    for part in quorum.parts:
        x, y = batch(part.index, quorum.steps)
        (nn.functional.mse_loss(model(x), y) * part.weight).backward()


def train(model: nn.Module, quorum: q7x2.late.QuorumSGD, steps: int) -> None:
    while quorum.steps < steps:
        backward(model, quorum)
        quorum.step()


def reference(count: Callable[[int], list[int]], steps: int) -> nn.Module:
    """One process that takes the mean of the parts that count in each step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        for part in count(step):
            x, y = batch(part, step)
            (nn.functional.mse_loss(model(x), y) / len(count(step))).backward()
        optimizer.step()
    return model
