"""torch.distributed.pipelining on q7x2: torchrun --nproc-per-node 2 with_pipelining.py

Each rank holds one stage of the model. The trained pipeline equals the model trained in one
process.
"""

import small
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
assert ranks == 2, "this model has two stages"

loss = nn.functional.cross_entropy
batches = list(DataLoader(small.data(1), small.BATCH))
pipeline = small.model()
mine = pipeline[:2] if rank == 0 else pipeline[2:]
stage = PipelineStage(mine, rank, ranks, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss)
optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
for x, y in batches:
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y)
    optimizer.step()

# Each stage goes to the other rank, so that both have the whole model.
for owner, part in enumerate((pipeline[:2], pipeline[2:])):
    for parameter in part.parameters():
        dist.broadcast(parameter.detach(), owner)

alone = small.model()
optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
for x, y in batches:
    optimizer.zero_grad()
    loss(alone(x), y).backward()
    optimizer.step()
for ours, expected in zip(pipeline.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours, expected)

small.check("Pipelining", pipeline)
dist.destroy_process_group()
