"""Who is named late: the rank that keeps the others waiting, not one that waits for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import meet

pytestmark = pytest.mark.beyond("gloo", "it names the rank that it waits for itself")


def group_where_rank_0_is_impatient() -> dist.ProcessGroup:
    """Rank 0 times out before the others have."""
    seconds = 2 if dist.get_rank() == 0 else 8
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    dist.barrier(group)
    return group


def late_in_the_error_of(call: Callable[[], object]) -> set[int]:
    with pytest.raises(RuntimeError, match="Timed out") as raised:
        call()
    return {int(rank) for rank in re.findall(r"rank (\d+) \([^)]*\) is late", str(raised.value))}


def stop_for(seconds: float) -> None:
    """Stops this process; another one wakes it."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.ranks(3, fresh=True)
def test_a_rank_that_waits_in_an_earlier_call_is_not_late() -> None:
    """A reduction costs rank 0 no wait, but its root waits for rank 2."""
    group = group_where_rank_0_is_impatient()
    x = torch.ones(1)
    if dist.get_rank() == 0:
        dist.reduce(x, 1, group=group)
        assert late_in_the_error_of(lambda: dist.all_reduce(x, group=group)) == {2}
    elif dist.get_rank() == 1:
        with pytest.raises(RuntimeError):
            dist.reduce(x, 1, group=group)
    meet()


@pytest.mark.ranks(3, fresh=True)
def test_a_rank_that_stops_after_it_has_answered_is_late() -> None:
    """Until it is stopped, rank 2 waits for rank 1, and says so.

    The ring needs it again when rank 1 has come.
    """
    group = group_where_rank_0_is_impatient()
    x = torch.ones(1 << 20)

    def all_reduce() -> dist.Work:
        with q7x2.algorithm("ring"):
            return dist.all_reduce(x, group=group, async_op=True)

    if dist.get_rank() == 0:
        assert late_in_the_error_of(lambda: all_reduce().wait()) == {2}
        return
    if dist.get_rank() == 1:
        time.sleep(0.6)
    work = all_reduce()
    if dist.get_rank() == 2:
        time.sleep(0.3)
        stop_for(seconds=4)
    with pytest.raises(RuntimeError):
        work.wait()


@pytest.mark.parametrize(("computes", "late"), [(False, 2), (True, 1)])
@pytest.mark.ranks(3, fresh=True)
def test_a_message_that_its_sender_does_not_send(computes: bool, late: int) -> None:
    """Rank 1, which receives one itself, is late only if it computes meanwhile."""
    group = group_where_rank_0_is_impatient()
    x = torch.ones(1)
    if dist.get_rank() == 0:
        assert late_in_the_error_of(lambda: dist.recv(x, 1, group=group)) == {late}
    elif dist.get_rank() == 1:
        work = dist.irecv(x, 2, group=group)
        if not computes:
            with contextlib.suppress(RuntimeError):
                work.wait()
    meet()  # until rank 0 has its error


@pytest.mark.ranks(3, fresh=True)
def test_a_new_group_waits_for_the_rank_that_keeps_the_others_in_another_group() -> None:
    """Rank 0 does not come to the new group: it waits for rank 1 in the group of the two."""
    pair = dist.new_group([0, 1], timeout=timedelta(seconds=20))
    dist.barrier()
    if dist.get_rank() == 2:
        with pytest.raises(RuntimeError, match="rank 0 did not join") as raised:
            dist.new_group(timeout=timedelta(seconds=2))
        late = re.findall(r"rank (\d+) \([^)]*\) of group '\w+' is late", str(raised.value))
        assert late == ["1"]
        return
    if dist.get_rank() == 1:
        time.sleep(4)
    dist.barrier(pair)
