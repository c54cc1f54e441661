"""A click model with a sharded embedding beside DDP: torchrun --nproc-per-node 2 embedding.py

Ids follow Zipf's law, as those of users and items do. Each id has a hidden taste, and a click
depends on the tastes of its three ids. The rows of the embedding lie on all ranks.
"""

import functools

import q7x2
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ROWS, DIM, BATCH, STEPS = 100_000, 16, 512, 60

dist.init_process_group("q7x2")
torch.manual_seed(0)
adagrad = functools.partial(torch.optim.Adagrad, lr=0.1)
small = functools.partial(nn.init.normal_, std=0.1)
generator = torch.Generator().manual_seed(1 + dist.get_rank())


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = q7x2.embedding.ShardedEmbedding(ROWS, DIM, optimizer=adagrad, init=small)
        self.dense = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.embedding(ids).flatten(1)).squeeze(1)


def batch() -> tuple[Tensor, Tensor]:
    ids = (ROWS ** torch.rand(BATCH, 3, generator=generator)).long() - 1
    taste = (ids * 2654435761 % 2**32).double() / 2**31 - 1
    return ids, (taste.sum(1) > 0).float()


ddp = DistributedDataParallel(Clicks())
embedding = ddp.module.embedding
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
losses = []
for _ in range(STEPS):
    ids, clicked = batch()
    loss = nn.functional.binary_cross_entropy_with_logits(ddp(ids), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    embedding.step()
    dist.all_reduce(mean := loss.detach(), dist.ReduceOp.AVG)
    losses.append(float(mean))
if dist.get_rank() == 0:
    sent, whole = embedding.stats.sent_bytes / STEPS, 4 * ROWS * DIM
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {sent / whole:.1%} of the table per step")
dist.destroy_process_group()
