"""After an exception nobody touches the tensor: neither the library, nor UCX, nor a peer.

The same buffer is used again and again while collectives on it are cut short. After each exception
the caller fills it with a pattern, waits, and finds the pattern.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta

import pytest
import seeds
import torch
import torch.distributed as dist
from broken_connections import reset_connections
from deadlines import NEVER
from values import meet

from tests.faults.calls import check, summed, values

RETRIES = 12
RETRIES_NIGHTLY = 1000
# A late write has this time to arrive. Later attempts on the same buffer find what comes later.
QUIET_S = 0.005
SEED = seeds.seed()


def retry(cut, attempts: int, count: int) -> None:
    """Each attempt makes a group and reduces one buffer on it until `cut` has ended the group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"seed {SEED}")
    rng = random.Random(f"{SEED}/{rank}")
    buffer = torch.empty(count)
    for attempt in range(attempts):
        group = dist.new_group(timeout=timedelta(seconds=NEVER))
        meet()  # a cut while a rank still makes its group is another test
        cutter = None
        if rank == attempt % world:
            cutter = threading.Timer(rng.uniform(0.0, 0.03), cut, [group])
            cutter.start()
        raised = None
        round_ = 0
        while raised is None:
            buffer.copy_(values(rank, round_, count))
            try:
                dist.all_reduce(buffer, group=group)
            except RuntimeError as error:
                raised = str(error)
            else:
                check(f"attempt {attempt}", buffer, summed(world, round_, count))
            round_ += 1
        pattern = float(-1 - attempt)
        buffer.fill_(pattern)
        time.sleep(QUIET_S)
        changed = int((buffer != pattern).sum())
        assert changed == 0, f"attempt {attempt}: {changed} elements changed after: {raised}"
        if cutter is not None:
            cutter.join()
        dist.destroy_process_group(group)


def reset(_: dist.ProcessGroup) -> None:
    assert reset_connections() > 0, "there was no connection to reset"


def abort(group: dist.ProcessGroup) -> None:
    group._get_backend(torch.device("cpu")).abort()


OVER_TCP = {"UCX_TLS": "tcp"}


@pytest.mark.beyond("gloo", "does not survive a reset")
@pytest.mark.ranks(3, env=OVER_TCP, deadline=120)
def test_retries_under_resets() -> None:
    retry(reset, RETRIES, 1 << 19)


@pytest.mark.nightly("minutes: thousands of retries")
@pytest.mark.timeout(1200)
@pytest.mark.beyond("gloo", "does not survive a reset")
@pytest.mark.ranks(2, 3, env=OVER_TCP, deadline=1000)
def test_many_retries_under_resets() -> None:
    retry(reset, RETRIES_NIGHTLY, 1 << 19)


@pytest.mark.beyond("gloo", "has no abort")
@pytest.mark.parametrize("count", [1 << 10, 1 << 19])
@pytest.mark.ranks(3, deadline=120)
def test_retries_under_aborts(count: int) -> None:
    """Within a host, where peers read and write shared memory."""
    retry(abort, RETRIES, count)


@pytest.mark.nightly("minutes: thousands of retries")
@pytest.mark.timeout(1200)
@pytest.mark.beyond("gloo", "has no abort")
@pytest.mark.parametrize("count", [1 << 10, 1 << 19])
@pytest.mark.ranks(2, 3, deadline=1000)
def test_many_retries_under_aborts(count: int) -> None:
    retry(abort, RETRIES_NIGHTLY, count)
