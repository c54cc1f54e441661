"""A rank that is killed in the middle of a write to another one of its host.

It leaves the queue of the other one blocked, through which all ranks of the host write to it what
does not go through q7x2's own shared memory: here the messages of the writer, or of all ranks, to
which the kernel gave no segment that is large enough. What becomes of groups that the dead rank was
not in, and of groups that are made later?
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import pytest
import small_machine
import torch
import torch.distributed as dist
from deadlines import NEVER

from tests.lab.processes import free_port

WRITER = 2
BETWEEN = 4 << 20  # bytes: segments of UCX are smaller, those of a group are larger
_CLONE_NEWIPC = 0x8000000


SHMMAX = Path("/proc/sys/kernel/shmmax")


def move_together(store: dist.Store, rank: int, limit: int | None) -> None:
    """To a namespace of SysV memory of these ranks' own, with segments of `limit` bytes at most."""
    libc = ctypes.CDLL(None, use_errno=True)
    if rank == 0:
        assert libc.unshare(_CLONE_NEWIPC) == 0
        if limit is not None:
            SHMMAX.write_text(str(limit))
        store.set("namespace", f"/proc/{os.getpid()}/ns/ipc")
        return
    with open(store.get("namespace").decode(), "rb") as namespace:
        assert libc.setns(namespace.fileno(), _CLONE_NEWIPC) == 0


@contextmanager
def no_large_segment() -> Iterator[None]:
    """Once the other ranks have theirs, the kernel gives no more."""
    before = SHMMAX.read_text()

    def others_have_theirs() -> bool:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        return sum(int(line.split()[3]) > BETWEEN for line in lines) >= WRITER

    harness.wait_until(others_have_theirs)
    SHMMAX.write_text(str(BETWEEN))
    yield
    SHMMAX.write_text(before)


def unreadable() -> tuple[mmap.mmap, torch.Tensor]:
    """A tensor in memory that cannot be read, and the memory."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.float32)[:16]
    libc = ctypes.CDLL(None, use_errno=True)
    address, length = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(mmap.PAGESIZE)
    assert libc.mprotect(address, length, 0) == 0
    return memory, tensor


def die_in_a_write(to: int) -> None:
    """The send takes a place in the queue of `to`, and is killed as it reads the tensor."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    _memory, tensor = unreadable()
    dist.send(tensor, to)


def error_of(call: Any) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return str(caught.value)


def exchange(group: dist.ProcessGroup | None, sender: int) -> None:
    """Small messages from `sender` to rank 0, one by one."""
    tensor = torch.zeros(16)
    for value in range(1000):
        if dist.get_rank() == sender:
            dist.send(tensor.fill_(value), 0, group=group)
        else:
            dist.recv(tensor, sender, group=group)
            assert tensor.tolist() == [value] * 16


def check(group: dist.ProcessGroup, rank: int) -> None:
    """Messages and collectives of two ranks."""
    tensor = torch.full([4], float(rank))
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0] * 4
    if rank == 1:
        group.send([tensor], 0, 0).wait()
    else:
        group.recv([tensor.zero_()], 1, 0).wait()
        assert tensor.tolist() == [1.0] * 4


def body_survive(world_port: int, port: int, without: str) -> dict[str, Any]:
    """All know each other. Then the writer dies while it writes to rank 0.

    Args:
        without: Who has no memory of q7x2's: "the writer" or "all".
    """
    import q7x2

    rank = harness.current_rank()
    timeout = timedelta(seconds=NEVER)
    meeting = dist.TCPStore("127.0.0.1", world_port, 3, is_master=rank == 0)
    move_together(meeting, rank, BETWEEN if without == "all" else None)
    is_alone = rank == WRITER and without == "the writer"
    with no_large_segment() if is_alone else nullcontext():
        dist.init_process_group("q7x2", store=meeting, rank=rank, world_size=3, timeout=timeout)
    pair = dist.new_group([0, 1])
    tensor = torch.ones(16)
    for sender in (1, WRITER):
        if rank in (0, sender):
            exchange(None, sender)
    # Nothing of a collective may lie behind the write that is never done.
    meeting.set(f"rank {rank} is ready", "")
    meeting.wait([f"rank {each} is ready" for each in range(3)])
    if rank == WRITER:
        die_in_a_write(to=0)
        return {}

    def reduce() -> None:
        while True:
            dist.all_reduce(tensor)

    found: dict[str, Any] = {"world": error_of(reduce)}

    def talk() -> None:
        while True:
            exchange(pair, 1)

    found["pair"] = error_of(talk)

    handles = q7x2.reconfigure_handles(pair)
    found["old"] = error_of(lambda: q7x2.reconfigure(1, handles, timeout=NEVER, group=pair))

    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    group = q7x2.ProcessGroup(store, rank, 2, timeout)
    check(group, rank)
    store.set(f"handle {rank}", q7x2.reconfigure_handle(pair))
    handles = [store.get(f"handle {each}").decode() for each in (0, 1)]
    successor = q7x2.reconfigure(2, handles, timeout=NEVER, group=pair)
    check(successor, rank)
    successor.shutdown()
    group.shutdown()
    return found


@pytest.mark.parametrize("without", ["the writer", "all"])
def test_other_groups_hear_of_it_and_new_ones_work(new_pool, without: str) -> None:
    if why := small_machine.why_not():
        pytest.skip(why)
    pool = new_pool(3)
    spec = harness.GroupSpec("q7x2", key="blocked-queue", timeout=NEVER, init="none")
    pool.start(body_survive, spec, world_port=free_port(), port=free_port(), without=without)
    outcomes = pool.collect(stop_on_failure=False)
    text = "\n".join(each.describe() for each in outcomes)
    assert outcomes[WRITER].exitcode == -signal.SIGSEGV, text
    for outcome in outcomes[:WRITER]:
        assert outcome.kind == "ok", text
        found = outcome.value
        assert f"rank {WRITER}" in found["world"]
        for call in ("pair", "old"):
            assert re.search("no longer (arrive|receives)", found[call]), text
