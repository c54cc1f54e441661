"""Groups of ranks that know each other, when the process that served the job's store is gone."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from deadlines import NEVER
from values import assert_bits

SERVER = """
    import pathlib, sys, time
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = pathlib.Path(sys.argv[1])
    port.with_suffix(".new").write_text(str(store.port))
    port.with_suffix(".new").rename(port)
    time.sleep(600)
"""


def check_sum(group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    tensor = torch.full((10,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    assert_bits(tensor, torch.full((10,), float(sum(ranks))))


def body_without_store(directory: str) -> None:
    rank = harness.current_rank()
    path = pathlib.Path(directory, "port")
    server = None
    if rank == 0:
        server = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SERVER), str(path)])
    harness.wait_until(path.exists)
    store = dist.TCPStore("127.0.0.1", int(path.read_text()), wait_for_workers=False)
    timeout = timedelta(seconds=NEVER)
    dist.init_process_group("q7x2", store=store, rank=rank, world_size=3, timeout=timeout)
    dist.barrier()
    if server is not None:
        server.kill()
        server.wait()
    dist.barrier()
    everybody = [0, 1, 2]
    check_sum(dist.new_group(), everybody)
    for ranks in ([2, 0], [1, 2], everybody):
        group = dist.new_group(ranks)
        if rank in ranks:
            check_sum(group, ranks)
    again = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(3) if rank < 2]
    for group in again:
        check_sum(group, [0, 1])
    dist.barrier()


@pytest.mark.beyond("gloo", "its ranks find each other by the store")
def test_new_groups_need_no_store(new_pool, tmp_path: pathlib.Path) -> None:
    pool = new_pool(3)
    spec = harness.GroupSpec("q7x2", key="without-store", timeout=NEVER, init="none")
    pool.start(body_without_store, spec, directory=str(tmp_path))
    outcomes = pool.collect()
    text = "\n".join(each.describe() for each in outcomes)
    assert all(each.kind == "ok" for each in outcomes), text


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15),
    reason="from torch 2.15 on, such names count the calls of each rank: all ranks must call",
)
@pytest.mark.ranks(3)
def test_a_name_that_comes_again() -> None:
    """The same members make and destroy groups, whose names are made of their ranks."""
    rank = dist.get_rank()
    for turn in range(10):
        ranks = [turn % 3, (turn + 1) % 3]
        if rank in ranks:
            group = dist.new_group(sorted(ranks), use_local_synchronization=True)
            check_sum(group, ranks)
            dist.destroy_process_group(group)
    dist.barrier()
