"""torchtitan's own set-up of its process group, on q7x2.

    torchrun --nproc-per-node 2 with_torchtitan.py

torchtitan's training loop needs a GPU; this shows the line that chooses the backend, and trains a
sharded model (FSDP2) over the group that torchtitan has made.
"""

import tempfile

import small
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.config import CommConfig
from torchtitan.distributed import utils
from torchtitan.tools.utils import device_type

# torchtitan takes the default backend of its device ("cuda" also where there is none).
dist.Backend.default_device_backend_map[device_type] = "q7x2"
ranks = utils.init_distributed(CommConfig(), base_folder=tempfile.mkdtemp())

model = small.model()
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (ranks,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.utils.data.Subset(small.data(ranks), range(dist.get_rank(), 32 * ranks, ranks))
for x, y in torch.utils.data.DataLoader(samples, small.BATCH):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

whole = small.model()
parameters = {name: p.full_tensor() for name, p in model.named_parameters()}
whole.load_state_dict(parameters)
small.check("torchtitan", whole)
dist.destroy_process_group()
