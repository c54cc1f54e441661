"""Who is named late: the rank that keeps the others waiting, not one that waits for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER, shorten_timeout
from harness import wait_until
from process_state import state_of
from values import Signals, meet

pytestmark = pytest.mark.beyond("gloo", "it names the rank that it waits for itself")

PATIENCE_S = 3.0


def group_where_rank_0_is_impatient(patience: float = PATIENCE_S) -> dist.ProcessGroup:
    """The others hear of its error."""
    group = dist.new_group(timeout=timedelta(seconds=NEVER))
    if dist.get_rank() == 0:
        shorten_timeout(patience, group)
    return group


def late_in_the_error_of(call: Callable[[], object]) -> set[int]:
    with pytest.raises(RuntimeError, match="Timed out") as raised:
        call()
    return {int(rank) for rank in re.findall(r"rank (\d+) \([^)]*\) is late", str(raised.value))}


@pytest.mark.ranks(3, fresh=True)
def test_a_rank_that_waits_in_an_earlier_call_is_not_late() -> None:
    """A reduction costs rank 0 no wait, but its root waits for rank 2."""
    group, signals = group_where_rank_0_is_impatient(), Signals()
    x = torch.ones(1)
    if dist.get_rank() == 0:
        dist.reduce(x, 1, group=group)
        signals.wait("rank 1 has called")
        assert late_in_the_error_of(lambda: dist.all_reduce(x, group=group)) == {2}
    elif dist.get_rank() == 1:
        work = dist.reduce(x, 1, group=group, async_op=True)
        signals.give("rank 1 has called")
        with pytest.raises(RuntimeError):
            work.wait()
    meet()


@pytest.mark.ranks(3, fresh=True)
def test_a_rank_that_stops_after_it_has_answered_is_late() -> None:
    """Until it is stopped, rank 2 waits for rank 1, and says so.

    The ring needs it again when rank 1 has come.
    """
    group, signals = group_where_rank_0_is_impatient(2 * PATIENCE_S), Signals()
    x = torch.ones(1 << 20)

    def all_reduce() -> dist.Work:
        with q7x2.collectives.algorithm("ring"):
            return dist.all_reduce(x, group=group, async_op=True)

    if dist.get_rank() == 0:
        stopped = int(signals.wait("rank 2 has called"))
        work = all_reduce()
        time.sleep(0.5)  # rank 2 answers meanwhile. If it does not, it is late all the same.
        signals.give("rank 2 may stop")
        assert late_in_the_error_of(work.wait) == {2}
        os.kill(stopped, signal.SIGCONT)
        return
    if dist.get_rank() == 1:
        stops = int(signals.wait("rank 2 stops"))
        wait_until(lambda: state_of(stops) == "T")
        work = all_reduce()
    else:
        work = all_reduce()
        signals.give("rank 2 has called", str(os.getpid()))
        signals.wait("rank 2 may stop")
        signals.give("rank 2 stops", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    with pytest.raises(RuntimeError):
        work.wait()


@pytest.mark.parametrize(("computes", "late"), [(False, 2), (True, 1)])
@pytest.mark.ranks(3, fresh=True)
def test_a_message_that_its_sender_does_not_send(computes: bool, late: int) -> None:
    """Rank 1, which receives one itself, is late only if it computes meanwhile."""
    group, signals = group_where_rank_0_is_impatient(), Signals()
    x = torch.ones(1)
    if dist.get_rank() == 0:
        signals.wait("rank 1 has called")
        assert late_in_the_error_of(lambda: dist.recv(x, 1, group=group)) == {late}
        group.abort()  # the message of rank 1 has no deadline
    elif dist.get_rank() == 1:
        work = dist.irecv(x, 2, group=group)
        signals.give("rank 1 has called")
        if not computes:
            with contextlib.suppress(RuntimeError):
                work.wait()
    meet()  # until rank 0 has its error


@pytest.mark.ranks(3, fresh=True)
def test_a_new_group_waits_for_the_rank_that_keeps_the_others_in_another_group() -> None:
    """Ranks 0 and 1 do not come to the new group: rank 0 waits for rank 1 in a group of the two."""
    pair = dist.new_group([0, 1])
    signals = Signals()
    if dist.get_rank() == 0:
        work = dist.barrier(pair, async_op=True)
        signals.give("rank 0 has called")
        work.wait()
    elif dist.get_rank() == 1:
        signals.wait("rank 2 has its error")
        dist.barrier(pair)
    else:
        signals.wait("rank 0 has called")
        with pytest.raises(RuntimeError, match="ranks 0, 1 did not join") as raised:
            dist.new_group(timeout=timedelta(seconds=PATIENCE_S))
        late = re.findall(r"rank (\d+) \([^)]*\) of group '\w+' is late", str(raised.value))
        signals.give("rank 2 has its error")
        assert late == ["1"]
