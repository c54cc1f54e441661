"""torchft on q7x2: two replica groups, each a process of its own; one may die and come back.

    torchft_lighthouse --bind "[::]:29510" --min_replicas 2 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    REPLICA=0 python with_torchft.py & REPLICA=1 python with_torchft.py; wait

With DIE_AT_STEP=3 a replica exits in step 3. Started again, it gets its state from the other one.
"""

import os
from datetime import timedelta

import q7x2.torchft
import small
import torch
import torch.distributed as dist
import torchft
from torch import nn
from torchft.optim import OptimizerWrapper

replica, host = os.environ["REPLICA"], os.uname().nodename

model = small.model()
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
parts = {"model": model, "optimizer": inner}
group = q7x2.torchft.ProcessGroupQ7x2(timeout=timedelta(seconds=30))
store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
manager = torchft.Manager(
    pg=group,
    min_replica_size=2,  # with more replicas, fewer than their number: the others go on
    load_state_dict=lambda state: [part.load_state_dict(state[k]) for k, part in parts.items()],
    state_dict=lambda: {k: part.state_dict() for k, part in parts.items()},
    replica_id=f"replica {replica} ",
    store_addr=host,
    store_port=store.port,
    rank=0,
    world_size=1,
    quorum_timeout=timedelta(minutes=10),
)
optimizer = OptimizerWrapper(manager, inner)

while manager.current_step() < small.STEPS:
    step = manager.current_step()
    generator = torch.Generator().manual_seed(1000 * step + int(replica))
    x = torch.randn(small.BATCH, 32, generator=generator)
    y = torch.randint(8, (small.BATCH,), generator=generator)
    optimizer.zero_grad()  # agrees with the others on who takes part in this step
    loss = nn.functional.cross_entropy(model(x), y)
    if str(step) == os.environ.get("DIE_AT_STEP"):
        os._exit(9)
    loss.backward()
    # Not torchft's DistributedDataParallel: it raises an AssertionError if a reduction fails.
    for work in [manager.allreduce(p.grad) for p in model.parameters()]:
        work.wait()
    optimizer.step()  # only if no replica failed in this step

digest = sum(p.detach().double().sum().item() for p in model.parameters())
ending = f"step {manager.current_step()}, parameters {digest:.17g}"
print(f"torchft: replica {replica} on {group.getBackendName()} ends at {ending}", flush=True)
manager.shutdown(wait=False)
