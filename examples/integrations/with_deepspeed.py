"""DeepSpeed (ZeRO stage 1) on q7x2: torchrun --nproc-per-node 2 with_deepspeed.py"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import small
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

deepspeed.init_distributed(dist_backend="q7x2")

model = small.model()
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
    config={
        "train_micro_batch_size_per_gpu": small.BATCH,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)
dataset = small.data(dist.get_world_size())
for x, y in DataLoader(dataset, small.BATCH, sampler=DistributedSampler(dataset, shuffle=False)):
    loss = nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss)
    engine.step()

small.check("DeepSpeed", engine.module)
dist.destroy_process_group()
