"""PEFT on q7x2, LoRA in plain DDP: torchrun --nproc-per-node 2 with_peft.py"""

import peft
import q7x2
import small
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("q7x2")
# Only the adapters have gradients, so they are all that is sent.
adapters = peft.LoraConfig(r=4, target_modules=["0", "2"])
model = peft.get_peft_model(small.model(), adapters)
ddp = DDP(model)
hook = q7x2.attach(ddp, q7x2.Quantize("int8"))
optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.1)

data = small.data(dist.get_world_size())
for x, y in DataLoader(data, batch_size=small.BATCH, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimizer.step()

assert hook.stats.steps == small.STEPS
small.check("PEFT", model.merge_and_unload())  # the layers with what their adapters have learnt
dist.destroy_process_group()
