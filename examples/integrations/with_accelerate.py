"""Hugging Face Accelerate on q7x2: torchrun --nproc-per-node 2 with_accelerate.py"""

import q7x2
import small
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

# Accelerate knows no other backends than its own, but it takes a process group that is there.
dist.init_process_group("q7x2")
# Without cpu=True and without a GPU each rank would silently train a copy of its own.
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == dist.get_world_size()

model = small.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(small.data(dist.get_world_size()), batch_size=small.BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
hook = q7x2.attach(model, q7x2.Quantize("int8"))  # after prepare, which makes the DDP model

for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()

assert hook.stats.steps == small.STEPS
small.check("Accelerate", model)
dist.destroy_process_group()
