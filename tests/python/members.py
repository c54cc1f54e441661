"""Groups that change their members: how ranks meet outside of them, and whether a group works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import current_rank
from values import assert_bits


def check_group(group: dist.ProcessGroup | None = None) -> None:
    """Call the collectives that a step needs, in several sizes, and check their results."""
    group = group or dist.group.WORLD
    rank, size = group.rank(), group.size()
    for elements in (1, 1000, 1 << 18):
        tensor = torch.full((elements,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        assert_bits(tensor, torch.full((elements,), float(size * (size + 1) // 2)))
    tensor = torch.full((10,), float(rank))
    dist.broadcast(tensor, group=group, group_src=size - 1)
    assert_bits(tensor, torch.full((10,), float(size - 1)))
    parts = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)), group=group)
    assert [int(part[0]) for part in parts] == list(range(size))


class Board:
    """What the ranks of a test tell each other beside the code under test."""

    def __init__(self, shared: str, world_size: int) -> None:
        self._store = dist.FileStore(f"{shared}/board", -1)
        self._store.set_timeout(timedelta(seconds=50))
        self._ranks = range(world_size)

    def handles(self, name: str = "handles", handle: str | None = None) -> list[str]:
        """Return the handles of all ranks, by rank."""
        self._store.set(f"{name}{current_rank()}", handle or q7x2.reconfigure_handle())
        return [self._store.get(f"{name}{rank}").decode() for rank in self._ranks]

    def barrier(self, name: str) -> None:
        """Return when all ranks have called it with this name."""
        self._store.set(f"{name}{current_rank()}", "here")
        self._store.wait([f"{name}{rank}" for rank in self._ranks])


def error_of(call: Callable[[], Any]) -> str:
    """Return the message of the error that the call raises."""
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value)


def reduce_until_error() -> str:
    """Reduce in the default group until another rank dies; return the message of the error."""
    tensor = torch.ones(1 << 16)
    try:
        while True:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
    except dist.DistBackendError as error:
        return str(error)


def die() -> None:
    """End this process in the middle of a collective of the default group."""
    dist.all_reduce(torch.ones(1 << 16), dist.ReduceOp.MAX, async_op=True)
    os.kill(os.getpid(), signal.SIGKILL)
