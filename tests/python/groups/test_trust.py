"""Only processes of the job can join it: ``Q7X2_SECRET``, and the modes of shared memory."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER
from harness import current_rank
from members import Board, check_group, error_of

FRESH: dict[str, Any] = {"init": "none", "fresh": True}
OURS, THEIRS = "what only this job knows", "what another job knows"


def init(world_size: int, shared: str) -> None:
    dist.init_process_group(
        "q7x2",
        init_method=f"file://{shared}/store",
        rank=current_rank(),
        world_size=world_size,
        timeout=timedelta(seconds=NEVER),
    )


@pytest.mark.ranks(2, 3, **FRESH)
def test_ranks_with_one_secret_work_together(world_size: int, shared: str) -> None:
    os.environ["Q7X2_SECRET"] = OURS
    init(world_size, shared)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 1000
    group = q7x2.reconfigure(1, q7x2.reconfigure_handles(dist.group.WORLD))
    check_group(group)


@pytest.mark.ranks(2, 4, **FRESH)
@pytest.mark.parametrize("secrets", [(OURS, THEIRS), (OURS, None), (None, THEIRS)])
def test_a_rank_with_another_secret_cannot_join(
    world_size: int, shared: str, secrets: tuple[str | None, str | None]
) -> None:
    own = secrets[current_rank() == 1]
    if own is not None:
        os.environ["Q7X2_SECRET"] = own
    said = error_of(lambda: init(world_size, shared))
    assert "does not have the seal of this job: Q7X2_SECRET" in said, said


@pytest.mark.ranks(1, **FRESH)
def test_a_short_secret_is_refused(world_size: int, shared: str) -> None:
    os.environ["Q7X2_SECRET"] = "short"
    with pytest.raises(ValueError, match=r"5 characters, expected at least 16.*rand -hex 32"):
        init(world_size, shared)


@pytest.mark.ranks(2, **FRESH)
def test_a_handle_of_another_secret_is_refused(world_size: int, shared: str) -> None:
    os.environ["Q7X2_SECRET"] = f"the secret of rank {current_rank()}"
    board = Board(shared, world_size)
    handles = board.handles()
    said = error_of(lambda: q7x2.reconfigure(1, handles, timeout=NEVER))
    assert "Q7X2_SECRET, which is set here, must be the same there" in said, said
    board.barrier("end")


@pytest.mark.ranks(2, fresh=True)
def test_other_users_cannot_open_shared_memory(world_size: int) -> None:
    dist.barrier()
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    modes = [int(row[2][-3:], 8) for row in rows if int(row[4]) == os.getpid()]
    for fd in Path("/proc/self/fd").iterdir():
        if fd.exists() and str(fd.readlink()).startswith("/dev/shm/ucx"):
            modes.append(fd.stat().st_mode & 0o777)
    assert modes, "there is shared memory"
    assert set(modes) == {0o600}
