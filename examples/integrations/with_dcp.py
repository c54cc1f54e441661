"""Distributed checkpoints (DCP) on q7x2: torchrun --nproc-per-node 2 with_dcp.py

The residuals of the hook are saved with the model, so a resumed training has the same bits as one
that was not stopped. The checkpoint is written while the training goes on, in a process group of
its own.
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
# dcp.async_save copies the state and returns. A thread of its own then agrees with the other ranks
# about who writes what, while the training goes on. All ranks must make the calls of a group in the
# same order, and two threads have no order between them. So the thread gets a group of its own.
saving_group = dist.new_group()
saving = dcp.async_save(unbroken, checkpoint_id=folder[0], process_group=saving_group)
train(unbroken, range(half, small.STEPS))
saving.result()  # the checkpoint is complete from here on

resumed = setup()
train(resumed, range(1))  # gives the optimizer its state, which dcp.load overwrites
dcp.load(resumed, checkpoint_id=folder[0])
train(resumed, range(half, small.STEPS))

for p, q in zip(unbroken["model"].parameters(), resumed["model"].parameters(), strict=True):
    assert torch.equal(p, q), "the resumed training went another way"
small.check("DCP", resumed["model"])
dist.destroy_process_group()
