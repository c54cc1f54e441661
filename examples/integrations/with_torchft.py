"""torchft on q7x2: two replica groups, each a process of its own; one may die and come back.

    torchft_lighthouse --bind "[::]:29510" --min_replicas 2 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    REPLICA=0 python with_torchft.py & REPLICA=1 python with_torchft.py; wait

With DIE_AT_STEP=3 a replica exits in its step 3. Start it again without that: it takes the model
and the step from the other replica, which has waited. (With more replicas, a min_replica_size below
their number lets the others go on.)
"""

import os
import socket
from datetime import timedelta

import q7x2.torchft
import small
import torch
import torch.distributed as dist
import torchft
from torch import nn
from torchft.optim import OptimizerWrapper

replica = os.environ["REPLICA"]
deadly_step = int(os.environ.get("DIE_AT_STEP", "-1"))

model = small.model()
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
group = q7x2.torchft.ProcessGroupQ7x2(timeout=timedelta(seconds=30))
host = socket.gethostname()
store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
manager = torchft.Manager(
    pg=group,
    min_replica_size=2,
    load_state_dict=lambda state: (
        model.load_state_dict(state["model"]),
        inner.load_state_dict(state["optimizer"]),
    ),
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    replica_id=f"replica {replica} ",
    store_addr=host,
    store_port=store.port,
    rank=0,
    world_size=1,
    timeout=timedelta(seconds=30),
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
    if step == deadly_step:
        os._exit(9)
    loss.backward()
    # Not with torchft's DistributedDataParallel: it raises an AssertionError in torchft 0.2
    # if a reduction fails.
    for work in [manager.allreduce(p.grad) for p in model.parameters()]:
        work.wait()
    optimizer.step()  # only if no replica failed in this step

digest = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item()
print(
    f"torchft: replica {replica} on {group.getBackendName()} ends at step "
    f"{manager.current_step()}, parameters {digest:.17g}",
    flush=True,
)
manager.shutdown(wait=False)
