"""The demo's language model with HSDP: shards inside a host, compressed averages between hosts.

    torchrun --nproc-per-node 4 examples/hsdp.py --shards 2 --steps 300

With --shards 2 four ranks are two replicas of two shards. On real machines let --shards be the
number of ranks per host; docs/fsdp.md has the details.
"""

import argparse

import q7x2
import torch
import torch.distributed as dist
from corpus import Sampler, standard_library
from gpt import GPT, GPTConfig
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--shards", type=int, default=2)
parser.add_argument("--codec", default="int8", help="between replicas")
parser.add_argument("--dim", type=int, default=128)
args = parser.parse_args()

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
text = standard_library()
context, batch = 64, 8
data = Sampler(text.train, context, batch, rank, ranks, seed=0)
model = GPT(GPTConfig(layers=2, heads=4, dim=args.dim, context=context))
shape = (ranks // args.shards, args.shards)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
for block in model.blocks:
    fully_shard(block, mesh=mesh["shards"])
fully_shard(model, mesh=mesh["shards"])  # one dimension: q7x2 reduces over the other
between = mesh["replicas"].get_group()
hook = q7x2.attach(model, q7x2.Quantize(args.codec), replica_group=between)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after fully_shard
for step in range(1, args.steps + 1):
    loss = model(*data.next())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

x, y = Sampler(text.validation, context, 64, rank, ranks, seed=1).next()
with torch.no_grad():
    loss = model(x, y)
dist.all_reduce(loss, dist.ReduceOp.AVG)
if rank == 0:
    less = hook.stats.gradient_bytes / max(1, hook.stats.message_bytes)
    print(f"validation loss {loss.item():.3f}, {less:.1f} x fewer bytes between replicas")
dist.destroy_process_group()
