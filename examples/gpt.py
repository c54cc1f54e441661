"""A byte-level GPT: pre-norm blocks, learned positions, the output tied to the embedding."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # every value of a byte


@dataclass(frozen=True)
class GPTConfig:
    layers: int = 6
    heads: int = 8
    dim: int = 256
    context: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "dim", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.dim % self.heads:
            raise ValueError(
                f"dim must be a multiple of heads, got dim={self.dim}, heads={self.heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, 4 * config.dim), nn.GELU(), nn.Linear(4 * config.dim, config.dim)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """Bytes `x` and the next ones `y` (int64, [batch, time]) -> their mean cross entropy, nats."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.dim)
        self.position = nn.Embedding(config.context, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)
        self.apply(self._initialise)
        for block in self.blocks:  # the residual stream keeps its variance at any depth
            for last in (block.attention.out, block.mlp[-1]):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embedding(x) + self.position(torch.arange(x.size(1), device=x.device))
        h = self.dropout(h)
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
