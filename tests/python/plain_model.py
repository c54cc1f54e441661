"""A small model and its data, for tests of what stands on c10d."""

from __future__ import annotations

import torch
from torch import nn


class Plain(nn.Module):
    """No batch statistics: the mean of the ranks' gradients is the gradient of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def batch(rank: int, step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 16, generator=generator), torch.randn(rows, 4, generator=generator)


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], **kwargs) -> torch.Tensor:
    return nn.functional.mse_loss(model(data[0], **kwargs), data[1])
