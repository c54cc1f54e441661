"""Ray Train on q7x2: python with_ray.py (Ray starts the ranks itself)"""

import q7x2
import ray
import small
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

RANKS = 2


def train() -> None:
    """Runs in each worker, where Ray has made the process group and will end it."""
    model = prepare_model(small.model())
    hook = q7x2.attach(model, q7x2.Quantize("int8"))  # after prepare_model makes the DDP model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = small.data(RANKS)
    for x, y in DataLoader(data, batch_size=small.BATCH, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert hook.stats.steps == small.STEPS
    small.check("Ray Train", model)


if __name__ == "__main__":
    # A cluster on this machine only. Leave this line out to use the cluster of RAY_ADDRESS.
    ray.init(address="local", num_cpus=RANKS, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        # Ray passes the name to init_process_group. Without it Ray takes Gloo or NCCL.
        torch_config=TorchConfig(backend="q7x2"),
        scaling_config=ScalingConfig(num_workers=RANKS),
    )
    trainer.fit()
    ray.shutdown()
