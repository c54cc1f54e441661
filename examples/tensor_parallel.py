"""An MLP that two ranks share: torchrun --nproc-per-node 2 examples/tensor_parallel.py

Each rank has a part of both layers and a part of the sequence. Rows travel while others are
multiplied. docs/tensor_parallel.md explains it. The task: tell where a sequence rises.
"""

import q7x2
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

BATCH, SEQUENCE, WIDTH, STEPS = 8, 64, 32, 60

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # all ranks begin with the same weights and draw the same batches


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # [batch, sequence / ranks, width]
        return x + self.down(torch.relu(self.up(x)))


def batch() -> tuple[Tensor, Tensor]:
    """This rank's part of the sequences, and of where they rise."""
    x = torch.randn(BATCH, SEQUENCE, WIDTH)
    rises = (x[..., 1:].sum(-1) > x[..., 0]).float()
    return x.chunk(ranks, 1)[rank], rises.chunk(ranks, 1)[rank]


model, head = Block(), nn.Linear(WIDTH, 1)
mesh = init_device_mesh("cpu", (ranks,))
plan = {"up": q7x2.tensor_parallel.ColwiseOverlap(), "down": q7x2.tensor_parallel.RowwiseOverlap()}
parallelize_module(model, mesh, plan)
optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, head)]
losses = []
for _ in range(STEPS):
    x, rises = batch()
    logits = head(model(x)).squeeze(-1)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, rises) / ranks
    loss.backward()
    for p in head.parameters():  # each rank has seen its part of the sequence
        dist.all_reduce(p.grad)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(total := loss.detach())
    losses.append(float(total))
if rank == 0:
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; up: {model.up.overlap}")
dist.destroy_process_group()
