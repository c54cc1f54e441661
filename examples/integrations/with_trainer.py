"""The Trainer of Hugging Face Transformers on q7x2: torchrun --nproc-per-node 2 with_trainer.py"""

import tempfile

import q7x2
import small
import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Classifier(nn.Module):
    """The Trainer wants a model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small.model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


class Attach(TrainerCallback):
    """Attaches the hook when the Trainer has made its DDP model."""

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.hook = q7x2.attach(trainer.model_wrapped, q7x2.Quantize("int8"))


# TrainingArguments(ddp_backend=...) refuses names it does not know, so the group is made first.
dist.init_process_group("q7x2")
# Without use_cpu=True and without a GPU each rank would silently train a copy of its own.
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    per_device_train_batch_size=small.BATCH,
    num_train_epochs=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
assert arguments.world_size == dist.get_world_size()

samples = [{"x": x, "labels": y} for x, y in small.data(dist.get_world_size())]
attach = Attach()
trainer = Trainer(Classifier(), arguments, train_dataset=samples, callbacks=[attach])
trainer.train()

assert attach.hook.stats.steps == small.STEPS
small.check("Trainer", trainer.model)
dist.destroy_process_group()
