"""The demo's language model with DDP and compressed gradients.

    torchrun --nproc-per-node 2 examples/ddp_hook.py --steps 300

Try --hook powersgd, --hook topk or --hook none; docs/hooks.md says which hook to take.
"""

import argparse

import q7x2
import torch
import torch.distributed as dist
from corpus import Sampler, standard_library
from gpt import GPT, GPTConfig
from torch.nn.parallel import DistributedDataParallel

HOOKS = {
    "int8": q7x2.Quantize("int8"),
    "int4": q7x2.Quantize("hadamard+int4:g=128"),
    "powersgd": q7x2.PowerSGD(rank=4),
    "topk": q7x2.TopK(0.01),
    "none": q7x2.Allreduce(),  # the same bits as DDP without a hook
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--hook", choices=HOOKS, default="int8")
parser.add_argument("--dim", type=int, default=128)
args = parser.parse_args()

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
text = standard_library()
context, batch = 64, 8
data = Sampler(text.train, context, batch, rank, ranks, seed=0)
model = DistributedDataParallel(GPT(GPTConfig(layers=2, heads=4, dim=args.dim, context=context)))
hook = q7x2.attach(model, HOOKS[args.hook])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, args.steps + 1):
    loss = model(*data.next())
    optimizer.zero_grad()
    loss.backward()  # buckets are compressed and sent while backward goes on
    optimizer.step()
    if rank == 0 and step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

x, y = Sampler(text.validation, context, 64, rank, ranks, seed=1).next()
with torch.no_grad():
    loss = model(x, y)
dist.all_reduce(loss, dist.ReduceOp.AVG)
if rank == 0:
    stats = hook.stats
    less = stats.gradient_bytes / max(1, stats.message_bytes)
    print(f"validation loss {loss.item():.3f}, {less:.1f} x fewer bytes than float32")
dist.destroy_process_group()
