"""Ray Train on q7x2: python with_ray.py

Ray starts the ranks and makes their process group, so there is no torchrun.
"""

import tempfile

import q7x2
import small
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def train() -> None:
    """Each rank runs this function."""
    model = prepare_model(small.model())  # a DDP model
    hook = q7x2.attach(model, q7x2.Quantize("int8"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = small.data(dist.get_world_size())
    for x, y in DataLoader(data, batch_size=small.BATCH, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert hook.stats.steps == small.STEPS
    small.check("Ray Train", model)


trainer = TorchTrainer(
    train,
    torch_config=TorchConfig(backend="q7x2"),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=tempfile.mkdtemp()),
)
trainer.fit()
