"""Lightning on q7x2: torchrun --nproc-per-node 2 with_lightning.py"""

import os

import lightning
import q7x2
import small
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

RANKS = int(os.environ["WORLD_SIZE"])


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = small.model()

    def on_train_start(self) -> None:
        # DDPStrategy(ddp_comm_hook=...) is silently ignored on the CPU.
        self.hook = q7x2.attach(self.trainer.strategy.model, q7x2.Quantize("int8"))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def on_train_end(self) -> None:
        # In here the process group is sure to exist.
        assert self.hook.stats.steps == small.STEPS
        small.check("Lightning", self.layers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=RANKS,
    strategy=DDPStrategy(process_group_backend="q7x2"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), DataLoader(small.data(RANKS), batch_size=small.BATCH))
