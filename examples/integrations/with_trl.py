"""TRL's SFTTrainer on q7x2: torchrun --nproc-per-node 2 with_trl.py"""

import tempfile

import q7x2
import small
import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

WORDS = 32


def language_model() -> LlamaForCausalLM:
    """The same on all ranks, and small enough for a test."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))


class Attach(TrainerCallback):
    """Attaches the hook when the Trainer has made its DDP model."""

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.hook = q7x2.attach(trainer.model_wrapped, q7x2.Quantize("int8"))


# SFTConfig(ddp_backend=...) refuses names it does not know, so the group is made first.
dist.init_process_group("q7x2")
# Without use_cpu=True and without a GPU each rank would silently train a copy of its own.
arguments = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    per_device_train_batch_size=small.BATCH,
    num_train_epochs=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
assert arguments.world_size == dist.get_world_size()

vocabulary = {"<end>": 0} | {f"w{n}": n for n in range(1, WORDS)}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
count = small.STEPS * small.BATCH * dist.get_world_size()
texts = torch.randint(WORDS, (count, 8), generator=torch.Generator().manual_seed(1)).tolist()
attach, data = Attach(), Dataset.from_dict({"input_ids": texts})
options = {"processing_class": tokenizer, "callbacks": [attach], "train_dataset": data}
trainer = SFTTrainer(language_model(), arguments, **options)
trainer.train()

assert attach.hook.stats.steps == small.STEPS
small.check("TRL", trainer.model, untrained=language_model())
dist.destroy_process_group()
