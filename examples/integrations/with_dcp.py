"""Distributed checkpoints (DCP) on q7x2: torchrun --nproc-per-node 2 with_dcp.py

The residuals of the hook are saved with the model, so a resumed training has the same bits as one
that was not stopped.
"""

import tempfile

import q7x2
import small
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("q7x2")
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
samples = small.data(dist.get_world_size()).tensors
mine = [tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in samples]


def setup() -> dict[str, object]:
    """What is saved: the model, its optimizer, and the hook with its residuals."""
    model = DistributedDataParallel(small.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "hook": q7x2.attach(model, q7x2.TopK(0.1))}


def train(state: dict[str, object], steps: range) -> None:
    for step in steps:
        x, y = (tensor[step * small.BATCH :][: small.BATCH] for tensor in mine)
        state["optimizer"].zero_grad()
        nn.functional.cross_entropy(state["model"](x), y).backward()
        state["optimizer"].step()


half = small.STEPS // 2
unbroken = setup()
train(unbroken, range(half))
# dcp.async_save returns at once, and writes while the training goes on.
saving = dcp.async_save(unbroken, checkpoint_id=folder[0])
saving.result()
train(unbroken, range(half, small.STEPS))

resumed = setup()
train(resumed, range(1))  # gives the optimizer its state, which dcp.load overwrites
dcp.load(resumed, checkpoint_id=folder[0])
train(resumed, range(half, small.STEPS))

for p, q in zip(unbroken["model"].parameters(), resumed["model"].parameters(), strict=True):
    assert torch.equal(p, q), "the resumed training went another way"
small.check("DCP", resumed["model"])
dist.destroy_process_group()
