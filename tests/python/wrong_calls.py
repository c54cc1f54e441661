"""What a wrong call may raise, and a check that the group can still be used."""

from __future__ import annotations

import torch
import torch.distributed as dist
from values import assert_bits

CPU = torch.device("cpu")
ERRORS = (RuntimeError, ValueError)


def works_still() -> None:
    """Check that an all-reduce of the default group gives the right sum."""
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((10,), float(dist.get_world_size())))
