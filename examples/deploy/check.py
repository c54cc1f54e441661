"""The first job on a new cluster: do all ranks reach each other, and by which way?

Every launcher in this directory starts it. Rank 0 prints what the group is made of, and each rank
checks the sum of an all-reduce. A wrong sum or a rank that cannot be reached is an error.
"""

from __future__ import annotations

import os

import q7x2
import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("q7x2")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((1 << 20,), float(rank + 1))
    dist.all_reduce(tensor)
    expected = size * (size + 1) / 2
    if not torch.equal(tensor, torch.full_like(tensor, expected)):
        raise RuntimeError(f"rank {rank}: the sum is {tensor[0]}, expected {expected}")
    dist.barrier()
    if rank == 0:
        print(q7x2.describe())
        is_set = any(os.environ.get(name) for name in ("Q7X2_SECRET", "Q7X2_SECRET_FILE"))
        print(f"secret: {'set' if is_set else 'not set'}")
        print(f"all_reduce over {size} ranks: correct", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
