"""Two ranks and one all-reduce, to see an installed wheel at work. Run by torchrun."""

import torch
import torch.distributed as dist

dist.init_process_group("q7x2")
rank, world_size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((1000,), float(rank + 1))
dist.all_reduce(tensor)
expected = world_size * (world_size + 1) / 2
assert torch.equal(tensor, torch.full((1000,), expected)), tensor
dist.destroy_process_group()
if rank == 0:
    print(f"all_reduce over {world_size} ranks: correct")
