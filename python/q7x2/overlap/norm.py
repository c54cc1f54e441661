"""The norm of gradients that are scattered over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def clip_shards(
    shards: Sequence[Tensor],
    max_norm: float,
    norm_type: float,
    group: ProcessGroup,
    device: torch.device,
) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_`` for the shards of all ranks; a collective call.

    Returns:
        The norm before clipping, a tensor of no dimensions, the same on all ranks.
    """
    norms = [torch.linalg.vector_norm(shard, norm_type).float() for shard in shards]
    norms.append(torch.zeros((), device=device))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    if norm_type == float("inf"):
        dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
    else:
        total = total.pow(norm_type)
        dist.all_reduce(total, group=group)
        total = total.pow(1.0 / norm_type)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for shard in shards:
        shard.mul_(factor)
    return total
