"""Lightning Fabric on q7x2: torchrun --nproc-per-node 2 with_fabric.py"""

import os

import q7x2
import small
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

RANKS = int(os.environ["WORLD_SIZE"])


class Compressed(DDPStrategy):
    """Attaches the hook to the DDP model, which Fabric wraps in a model of its own."""

    def setup_module(self, module: nn.Module) -> DistributedDataParallel:
        model = super().setup_module(module)
        self.hook = q7x2.attach(model, q7x2.Quantize("int8"))
        return model


strategy = Compressed(process_group_backend="q7x2")
fabric = Fabric(accelerator="cpu", devices=RANKS, strategy=strategy)
fabric.launch()
layers = small.model()
model, optimizer = fabric.setup(layers, torch.optim.SGD(layers.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(small.data(RANKS), batch_size=small.BATCH))

for x, y in loader:
    optimizer.zero_grad()
    fabric.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()

assert strategy.hook.stats.steps == small.STEPS
small.check("Fabric", model)
torch.distributed.destroy_process_group()
