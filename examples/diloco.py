"""The demo's language model with SparseLoCo: ranks talk once in 30 steps, and send 2 % of that.

    torchrun --nproc-per-node=2 examples/diloco.py --steps 300

Try --every 100, --codec int4 or --codec none; docs/cadence.md explains the options.
"""

import argparse

import q7x2
import torch
import torch.distributed as dist
from corpus import Sampler, standard_library
from gpt import GPT, GPTConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--every", type=int, default=30)
parser.add_argument("--codec", default="topk:0.025:reselect+int2:minmax:g=64")
parser.add_argument("--dim", type=int, default=128)
args = parser.parse_args()

dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
text = standard_library()
context, batch = 64, 8
data = Sampler(text.train, context, batch, rank, ranks, seed=0)
model = GPT(GPTConfig(layers=2, heads=4, dim=args.dim, context=context))
optimizer = q7x2.cadence.DiLoCo(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-3),
    sync_every=args.every,
    outer=q7x2.cadence.OuterSGD(lr=1, momentum=0),  # the residual takes the place of momentum
    codec=None if args.codec == "none" else args.codec,
    residual_decay=0.95,
)
for step in range(1, args.steps + 1):
    loss = model(*data.next())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % args.every == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

x, y = Sampler(text.validation, context, 64, rank, ranks, seed=1).next()
with torch.no_grad():
    loss = model(x, y)
dist.all_reduce(loss, dist.ReduceOp.AVG)
if rank == 0:
    stats = optimizer.stats
    less = stats.signal_bytes / max(1, stats.message_bytes)
    print(f"validation loss {loss.item():.3f}, {stats.outer_steps} outer steps")
    print(f"{less:.0f} x fewer bytes than float32, {stats.utilisation:.0%} of the time computing")
dist.destroy_process_group()
