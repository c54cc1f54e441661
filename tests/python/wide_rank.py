"""A rank of a ``wide_jobs.Job``: does what lines of JSON tell it, and answers with JSON."""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from strangers import listening

Facts = dict[str, Any]

BROADCAST = 500_000  # elements
ESTABLISHED = "01"  # in the kernel's tables


def connections() -> int:
    """The established TCP connections of this process."""
    own = set()
    for each in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing is gone
            own.add(each.readlink().name)
    tables = [pathlib.Path(f"/proc/self/net/{name}") for name in ("tcp", "tcp6")]
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
    rows = [line.split() for line in lines]
    return sum(row[3] == ESTABLISHED and f"socket:[{row[9]}]" in own for row in rows)


def resident() -> int:
    """Bytes of memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def facts() -> Facts:
    return {
        "pid": os.getpid(),
        "ports": listening(),
        "connections": connections(),
        "resident": resident(),
        "paths": sorted({peer["path"] for peer in q7x2.describe().peers}),
    }


def train(seed: int, calls: int, sizes: list[int], at_once: int = 4) -> Facts:
    """All-reduces of random tensors, `at_once` of them in progress; the digest of all results."""
    common = torch.Generator().manual_seed(seed)
    own = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    digest = hashlib.sha256()
    under_way: collections.deque[tuple[dist.Work, torch.Tensor]] = collections.deque()

    def take() -> None:
        work, result = under_way.popleft()
        work.wait()
        digest.update(result.numpy().tobytes())

    for _ in range(calls):
        size = sizes[int(torch.randint(len(sizes), (1,), generator=common))]
        tensor = torch.randn(size, generator=own)
        under_way.append((dist.all_reduce(tensor, async_op=True), tensor))
        if len(under_way) >= at_once:
            take()
    while under_way:
        take()
    return {"digest": digest.hexdigest()}


def train_until(flag: str, **how: Any) -> Facts:
    """The same again and again until a file is there; the digests."""
    digests = set()
    rounds = 0
    over = torch.zeros(1)
    while over[0] == 0:
        digests.add(train(**how)["digest"])
        rounds += 1
        over[0] = float(pathlib.Path(flag).exists())
        dist.all_reduce(over, dist.ReduceOp.MAX)
    return {"digests": sorted(digests), "rounds": rounds}


def loop_groups(times: int) -> Facts:
    right = True
    for i in range(times):
        group = dist.new_group()
        tensor = torch.full((1 + (i % 3) * 100_000,), 1.0)
        dist.all_reduce(tensor, group=group)
        right &= bool(tensor.eq(dist.get_world_size()).all())
        dist.destroy_process_group(group)
    return {"right": right}


def shrink(dead: list[int]) -> Facts:
    group = dist.shrink_group(dead)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    return {"sum": tensor[0].item(), "same": bool(tensor.eq(tensor[0]).all())}


def handle() -> Facts:
    return {"handle": q7x2.reconfigure_handle()}


def reconfigure(handles: list[str]) -> Facts:
    """A group of processes of several jobs."""
    group = q7x2.reconfigure("all", handles, timeout=datetime.timedelta(seconds=60))
    sums = []
    for size in (1, 100_000):
        tensor = torch.full((size,), float(group.rank()))
        group.allreduce(tensor).wait()
        sums += [tensor[0].item(), tensor[-1].item()]
    group.shutdown()
    return {"sums": sums}


def fork(seconds: float) -> Facts:
    """A child like a worker of a data loader, which outlives this process."""
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    return {"child": child}


def leave() -> Facts:
    """Ends right after a call."""
    dist.broadcast(torch.ones(BROADCAST), dist.get_rank())
    dist.destroy_process_group()
    print(json.dumps({"left": True}), flush=True)
    os._exit(0)


def broadcast(root: int, size: int = BROADCAST) -> Facts:
    tensor = torch.full((size,), float(dist.get_rank() == root))
    dist.broadcast(tensor, root)
    return {"right": bool(tensor.eq(1).all())}


def receive(source: int) -> Facts:
    dist.recv(torch.empty(1), source)
    return {}


def messages(size: int) -> Facts:
    """From each rank to each other one; half of them are received from any rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world) if other != rank]
    sends = [
        dist.isend(torch.full((size,), float(rank)), other, tag=tag)
        for other in others
        for tag in range(2)
    ]
    got = torch.empty(size)
    right = True
    for other in others:
        dist.recv(got, other, tag=0)
        right &= bool(got.eq(other).all())
    for _ in others:
        source = dist.recv(got, tag=1)
        right &= bool(got.eq(source).all())
    for send in sends:
        send.wait()
    return {"right": right}


DO = {
    each.__name__: each
    for each in (
        facts,
        train,
        train_until,
        loop_groups,
        shrink,
        handle,
        reconfigure,
        fork,
        leave,
        broadcast,
        messages,
        receive,
    )
}


def answer(line: str) -> Facts:
    arguments = json.loads(line)
    name = arguments.pop("do")
    began = time.monotonic()
    try:
        said = DO[name](**arguments)
    except Exception as error:
        said = {"raised": type(error).__name__, "text": str(error)}
    return {**said, "seconds": time.monotonic() - began}


def main() -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=float(os.environ.get("TIMEOUT", "600")))
    dist.init_process_group("q7x2", timeout=timeout)
    print(json.dumps(facts()), flush=True)
    for line in sys.stdin:
        if line == "end\n":
            break
        print(json.dumps(answer(line)), flush=True)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


main()
