"""Groups made and destroyed many times: nothing grows, however they end."""

from __future__ import annotations

from datetime import timedelta

import pytest
import q7x2
import torch
import torch.distributed as dist
from broken_connections import reduce_for_ever
from deadlines import NEVER

from tests.faults.resources import Resources, held

CYCLES = 35
CYCLES_NIGHTLY = 1000
SETTLED = 10  # the first cycles meet peers, load libraries, and fill caches
MEMORY_PER_CYCLE = 64 << 10


def one_cycle(cycle: int) -> None:
    """Most groups end in good order, some by an error, some are never made."""
    rank, world = dist.get_rank(), dist.get_world_size()
    timeout = timedelta(seconds=NEVER)
    if cycle % 5 == 4:
        options = q7x2.Options(algorithms="ring" if rank == 0 else "sra")
        with pytest.raises(RuntimeError, match="algorithm"):
            dist.new_group(timeout=timeout, pg_options=options)
        return
    group = dist.new_group(timeout=timeout)
    tensor = torch.ones(10_000)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == world
    if cycle % 5 == 3:
        dist.barrier()  # an abort may reach a rank that is still in a call of the group
        if rank == cycle % world:
            group._get_backend(torch.device("cpu")).abort()
        with pytest.raises(RuntimeError, match="abort"):
            reduce_for_ever(group)
    else:
        dist.barrier(group=group)
    dist.destroy_process_group(group)


def run_cycles(cycles: int) -> None:
    for cycle in range(SETTLED):
        one_cycle(cycle)
    dist.barrier()
    before = held()
    for cycle in range(SETTLED, cycles):
        one_cycle(cycle)
    dist.barrier()
    after = held()
    assert_no_growth(before, after, cycles - SETTLED)


def assert_no_growth(before: Resources, after: Resources, cycles: int) -> None:
    text = f"{before} after {SETTLED} cycles, {after} after {cycles} more"
    # A thread or a connection may be on its way out; a leak is one for each cycle.
    assert after.fds <= before.fds + 3, text
    assert after.threads <= before.threads + 3, text
    assert after.segments <= before.segments, text
    assert after.rss <= before.rss + (16 << 20) + cycles * MEMORY_PER_CYCLE, text


@pytest.mark.beyond("gloo", "has no options of this kind")
@pytest.mark.ranks(3, fresh=True, deadline=200)
def test_cycles() -> None:
    run_cycles(CYCLES)


@pytest.mark.nightly("minutes: a thousand groups")
@pytest.mark.timeout(1200)
@pytest.mark.beyond("gloo", "has no options of this kind")
@pytest.mark.ranks(3, fresh=True, deadline=1000)
def test_many_cycles() -> None:
    run_cycles(CYCLES_NIGHTLY)
