"""An idle group costs next to nothing: CPU time, which a busy machine does not change."""

from __future__ import annotations

import pathlib
import resource
import threading
import time

import harness
import pytest
import torch
import torch.distributed as dist
from values import meet

LIMIT = 0.01  # of one core
SPINS = 0.25  # of one core: more than looking after hundreds of calls takes


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def is_idle(limit: float = LIMIT) -> bool:
    """Whether this process takes less than ``limit`` of a core in a second, which passes."""
    before, start = cpu_seconds(), time.monotonic()
    time.sleep(1.0)
    return (cpu_seconds() - before) / (time.monotonic() - start) < limit


@pytest.mark.ranks(2, 4, fresh=True)
def test_idle_group(world_size: int) -> None:
    groups = [dist.new_group() for _ in range(3)]
    for group in [None, *groups]:
        dist.all_reduce(torch.ones(1 << 18), group=group)
    dist.barrier()
    harness.wait_until(is_idle)


def wake_ups() -> int:
    """How often the driver of this process has gone to sleep."""
    for thread in pathlib.Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().strip() == "q7x2-driver":
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    return int(line.split()[1])
    raise LookupError("this process has no thread q7x2-driver")


@pytest.mark.ranks(2, fresh=True)
def test_idle_process_sleeps_on() -> None:
    """Also with connections of UCX, which collectives on one host do not need."""
    rank = dist.get_rank()
    for sender in range(2):
        if rank == sender:
            dist.send(torch.ones(1), 1 - rank)
        else:
            dist.recv(torch.ones(1), 1 - rank)
    dist.barrier()

    def sleeps_on() -> bool:
        before = wake_ups()
        time.sleep(2.0)
        return wake_ups() - before <= 2

    harness.wait_until(sleeps_on)


@pytest.mark.ranks(2, fresh=True)
def test_waiting_for_a_late_rank_does_not_spin_for_long() -> None:
    """Three seconds in wait() for a rank that is busy elsewhere; its core may be needed there."""
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    if dist.get_rank() == 0:
        before, began = cpu_seconds(), time.monotonic()
        dist.all_reduce(torch.ones(10))
        assert cpu_seconds() - before < 0.1 * (time.monotonic() - began)
    else:
        time.sleep(3.0)
        dist.all_reduce(torch.ones(10))


@pytest.mark.ranks(2, fresh=True)
def test_pending_receive_does_not_spin() -> None:
    dist.barrier()
    received = torch.zeros(1)
    work = dist.irecv(received, 1 - dist.get_rank(), tag=3)
    harness.wait_until(is_idle)
    dist.send(torch.ones(1), 1 - dist.get_rank(), tag=3)
    work.wait()


@pytest.mark.ranks(2, fresh=True)
def test_threads_and_descriptors_do_not_grow() -> None:
    """A group costs no thread of its own, and destroyed groups give back what they took."""
    dist.all_reduce(torch.ones(10))

    def counts() -> tuple[int, int]:
        own = pathlib.Path("/proc/self")
        return len(list((own / "task").iterdir())), len(list((own / "fd").iterdir()))

    def cycle() -> None:
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    for _ in range(3):
        cycle()
    before = counts()
    for _ in range(10):
        cycle()
    after = counts()
    assert after[0] <= before[0] + 2, (before, after)
    assert after[1] <= before[1] + 4, (before, after)
    assert threading.active_count() < 10


@pytest.mark.ranks(2, fresh=True)
def test_memory_does_not_grow() -> None:
    def resident() -> int:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    tensor = torch.ones(1 << 20)
    for _ in range(20):
        dist.all_reduce(tensor)
    before = resident()
    for _ in range(200):
        dist.all_reduce(tensor)
        dist.isend(tensor[:1000], 1 - dist.get_rank())
        dist.recv(tensor[1000:2000], 1 - dist.get_rank())
    assert resident() - before < 32 << 20, f"{(resident() - before) >> 20} MiB more"


@pytest.mark.ranks(2, fresh=True)
def test_a_full_mailbox_does_not_spin() -> None:
    """More messages than a mailbox holds, for a rank of the same host that takes none of them."""
    calls = 400
    tensors = [torch.full((4,), float(i)) for i in range(calls)]
    if dist.get_rank() == 0:
        works = [dist.broadcast(each, 0, async_op=True) for each in tensors]
        harness.wait_until(lambda: is_idle(SPINS))
        meet()
    else:
        meet()
        tensors = [torch.zeros(4) for _ in range(calls)]
        works = [dist.broadcast(each, 0, async_op=True) for each in tensors]
    for work in works:
        work.wait()
    assert all(each[0] == i for i, each in enumerate(tensors))
