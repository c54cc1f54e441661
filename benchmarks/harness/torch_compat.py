"""What torch calls differently from version to version."""

from __future__ import annotations

import torch.distributed as dist

# torch 2.13 gave these two new names, and warns of the old ones.
if hasattr(dist, "all_gather_single"):
    all_gather_single = dist.all_gather_single
    reduce_scatter_single = dist.reduce_scatter_single
else:
    all_gather_single = dist.all_gather_into_tensor
    reduce_scatter_single = dist.reduce_scatter_tensor
