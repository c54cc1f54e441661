"""The demo's language model with FSDP2: sharded weights, and compressed traffic between the shards.

    torchrun --nproc-per-node 2 examples/fsdp2.py --steps 300

Try --gradients int8 or --weights bf16; docs/fsdp.md explains the options.
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
parser.add_argument("--gradients", default="int4:g=128")
parser.add_argument("--weights", default="int8")
parser.add_argument("--dim", type=int, default=128)
args = parser.parse_args()

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
text = standard_library()
context, batch = 64, 8
data = Sampler(text.train, context, batch, rank, ranks, seed=0)
model = GPT(GPTConfig(layers=2, heads=4, dim=args.dim, context=context))
mesh = init_device_mesh("cpu", (ranks,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
hook = q7x2.attach(model, q7x2.Sharded(weights=args.weights, gradients=args.gradients))
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
    stats = hook.stats
    gradients = stats.gradient_bytes / max(1, stats.message_bytes)
    weights = stats.weight_bytes / max(1, stats.weight_message_bytes)
    print(f"validation loss {loss.item():.3f}, x fewer bytes: ", end="")
    print(f"gradients {gradients:.1f}, weights {weights:.1f}")
dist.destroy_process_group()
