"""What a wrong call may raise, and a check that the group can still be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from deadlines import NEVER
from values import assert_bits, meet

CPU = torch.device("cpu")
ERRORS = (RuntimeError, ValueError)


def works_still() -> None:
    """Check that an all-reduce of the default group gives the right sum."""
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((10,), float(dist.get_world_size())))


@contextlib.contextmanager
def breakable_group() -> Iterator[dist.ProcessGroup]:
    """A group of all ranks whose error leaves the default group as it is."""
    group = dist.new_group(timeout=timedelta(seconds=NEVER))
    yield group
    meet()  # a rank that leaves earlier would end the calls of the others
    dist.destroy_process_group(group)
