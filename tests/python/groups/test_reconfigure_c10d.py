"""c10d's reconfigure, from torch 2.14 on: a group takes other members and stays the same object.

The cases are those of PyTorch's own test of fault tolerance (test_c10d_fault_tolerance.py).
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER
from harness import current_rank
from members import check_group

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure; 2.14 and newer do"
)

FRESH: dict[str, Any] = {"init": "none", "fresh": True}


class Job:
    """The default group of a rank, without members at first, and a store beside it."""

    def __init__(self, shared: str, world_size: int) -> None:
        self.me, self.size = current_rank(), world_size
        self._board = dist.FileStore(f"{shared}/board", -1)
        self._names = 0
        dist.init_process_group(
            "q7x2",
            store=dist.FileStore(f"{shared}/store", world_size),
            rank=self.me,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=30),
            enable_reconfigure=True,
        )
        assert dist._supports_reconfigure()

    def handles(self, position: int | None = None) -> list[str]:
        """Of all ranks: by original rank, or where each says that it is."""
        self._names += 1
        at = self.me if position is None else position
        self._board.set(f"{self._names}/{at}", dist._get_reconfigure_handle())
        return [self._board.get(f"{self._names}/{r}").decode() for r in range(self.size)]

    def take(self, uuid: int, handles: Any, timeout: float = NEVER) -> None:
        limit = datetime.timedelta(seconds=timeout)
        dist._reconfigure(uuid=uuid, handles=handles, timeout=limit).wait()
        assert dist.get_world_size() == len(handles)
        check_group()


@pytest.mark.ranks(3, **FRESH)
def test_a_group_has_no_members_before_the_first_one(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    with pytest.raises(RuntimeError, match="no members yet"):
        dist.all_reduce(torch.ones(1))
    handles = job.handles()
    assert len(set(handles)) == world_size
    group = dist.group.WORLD
    job.take(100, handles)
    assert group is dist.group.WORLD
    assert dist.get_rank() == job.me
    job.take(101, job.handles())  # the same members again


@pytest.mark.parametrize("leaves", [1, 2])
@pytest.mark.ranks(3, **FRESH)
def test_a_rank_leaves_and_comes_back(world_size: int, shared: str, leaves: int) -> None:
    job = Job(shared, world_size)
    job.take(1500, job.handles())
    handles = job.handles()
    if job.me != leaves:
        job.take(1501, handles[:leaves] + handles[leaves + 1 :])
        assert dist.get_rank() == (job.me if job.me < leaves else job.me - 1)
    job.take(1502, job.handles())
    assert dist.get_rank() == job.me


@pytest.mark.ranks(3, **FRESH)
def test_down_to_one_and_up_again(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    job.take(600 + job.me, [dist._get_reconfigure_handle()])
    job.take(603, job.handles())
    job.take(604 + job.me, [dist._get_reconfigure_handle()])
    assert dist.get_rank() == 0
    job.handles()  # until all are here


@pytest.mark.ranks(3, **FRESH)
def test_parts_merge(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    handles = job.handles()
    if job.me < 1:
        job.take(1000, handles[:1])
    else:
        job.take(1001, handles[1:])
    job.take(1002, job.handles())


@pytest.mark.ranks(3, **FRESH)
def test_unordered_handles_keep_the_order_of_ranks(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    job.take(1, job.handles()[::-1])
    before = dist.get_rank()
    job.take(2, set(job.handles()))
    assert dist.get_rank() == before


@pytest.mark.ranks(3, **FRESH)
def test_after_an_abort_and_after_a_timeout(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    job.take(1200, job.handles())
    handles = job.handles()
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    job.take(1201, handles)
    handles = job.handles()
    if job.me == 1:
        with pytest.raises(dist.DistBackendError, match=r"Timed out|timed out"):
            dist.all_reduce(torch.ones(3), async_op=True).wait(datetime.timedelta(seconds=1))
    job.handles()
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    job.take(1202, handles)


@pytest.mark.ranks(3, **FRESH)
def test_a_used_uuid_is_refused_and_the_group_goes_on(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    job.take(1100, job.handles())
    handles = job.handles()
    with pytest.raises(RuntimeError, match="already used"):
        job.take(1100, handles)
    check_group()


@pytest.mark.ranks(3, **FRESH)
def test_a_timeout_may_be_tried_again(world_size: int, shared: str) -> None:
    job = Job(shared, world_size)
    handles = job.handles()
    if job.me == 0:
        with pytest.raises(dist.DistBackendError, match="timed out"):
            job.take(1400, handles[:2], timeout=1)
    job.take(1401, job.handles())
