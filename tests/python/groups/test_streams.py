"""Groups whose collectives go over many connections between hosts (docs/wide.md)."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import time

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER
from values import assert_bits

STREAMS = {"Q7X2_STREAMS": "1", "Q7X2_HOST_ID": "{rank}"}
SIZES = (1, 1000, 100_000, 3_000_000)  # inside an envelope, copied, from the caller's memory
over_streams = pytest.mark.ranks(3, env=STREAMS, stays=True)


def paths() -> set[str]:
    return {peer["path"] for peer in q7x2.describe().peers}


@over_streams
def test_collectives_go_over_them() -> None:
    assert paths() == {"many connections"}
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in SIZES:
        mine = torch.arange(size, dtype=torch.float64) * (rank + 1)
        tensor = mine.clone()
        dist.all_reduce(tensor)
        assert_bits(tensor, torch.arange(size, dtype=torch.float64) * 6)
        tensor = mine.clone()
        dist.broadcast(tensor, 1)
        assert_bits(tensor, torch.arange(size, dtype=torch.float64) * 2)
        gathered = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(gathered, mine)
        for other, part in enumerate(gathered):
            assert_bits(part, torch.arange(size, dtype=torch.float64) * (other + 1))
        received = [torch.empty(size) for _ in range(world)]
        dist.all_to_all(received, [torch.full((size,), 10.0 * rank + to) for to in range(world)])
        for other, part in enumerate(received):
            assert_bits(part, torch.full((size,), 10.0 * other + rank))


@over_streams
def test_many_calls_at_once_keep_their_order() -> None:
    tensors = [torch.full((17 * (i % 7) ** 4 + 1,), float(i)) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert_bits(tensor, torch.full_like(tensor, 3.0 * i))


@over_streams
def test_messages_and_collectives_side_by_side() -> None:
    rank = dist.get_rank()
    for i in range(20):
        tensor = torch.full((50_000,), float(i))
        work = dist.all_reduce(tensor, async_op=True)
        message = torch.full((1000,), 7.0)
        if rank == 0:
            dist.send(message * i, 1)
        elif rank == 1:
            dist.recv(message, 0)
            assert_bits(message, torch.full((1000,), 7.0 * i))
        work.wait()
        assert_bits(tensor, torch.full((50_000,), 3.0 * i))


@over_streams
def test_who_leaves_right_after_a_call_is_not_missed() -> None:
    rank = dist.get_rank()
    for i in range(15):
        group = dist.new_group()
        tensor = torch.full((1 + (i % 3) * 400_000,), float(rank))
        dist.broadcast(tensor, i % 3, group=group)
        dist.destroy_process_group(group)
        assert_bits(tensor, torch.full_like(tensor, float(i % 3)))


@pytest.mark.ranks(3, env=STREAMS, stays=True)
def test_a_call_that_fails_leaves_nothing_behind() -> None:
    """What ranks sent for it takes no memory from later groups, which is bounded for each path."""
    rank = dist.get_rank()
    for _ in range(8):
        group = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
        if rank == 2:
            time.sleep(0.7)
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(3_000_000), group=group)
        dist.barrier()
    tensor = torch.full((3_000_000,), 2.0)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full_like(tensor, 6.0))


@pytest.mark.ranks(3, env={"Q7X2_HOST_ID": "{rank}"}, init="none", fresh=True)
def test_one_rank_that_does_not_want_them(shared: str) -> None:
    """Pairs with it use UCX, the others do not."""
    rank = harness.current_rank()
    os.environ["Q7X2_STREAMS"] = "0" if rank == 2 else "1"
    os.environ["Q7X2_ENCRYPT"] = "0" if rank == 2 else "1"  # of connections that it does not have
    dist.init_process_group("q7x2", init_method=f"file://{shared}/store", rank=rank, world_size=3)
    by_rank = {peer["rank"]: peer["path"] for peer in q7x2.describe().peers}
    assert by_rank.pop(2, "UCX") == "UCX"
    assert set(by_rank.values()) == ({"UCX"} if rank == 2 else {"many connections"})
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((100_000,), 3.0))
    dist.destroy_process_group()


@pytest.mark.ranks(2, env={"Q7X2_HOST_ID": "{rank}", "Q7X2_STREAMS": "many"}, init="none")
def test_another_value_is_refused(shared: str) -> None:
    rank = harness.current_rank()
    with pytest.raises(ValueError, match=r"Q7X2_STREAMS=many: expected 0 .*, 1 .*, or far"):
        dist.init_process_group(
            "q7x2", init_method=f"file://{shared}/store", rank=rank, world_size=2
        )


def body_reduce_for_ever(flag: str) -> None:
    tensor = torch.ones(1_000_000)
    for _ in range(3):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def test_a_killed_rank_is_named(new_pool, shared: str) -> None:
    flag = f"{shared}/ready"
    pool = new_pool(3, env=STREAMS)
    pool.start(body_reduce_for_ever, harness.GroupSpec("q7x2", timeout=NEVER), flag=flag)
    harness.wait_until(lambda: all(pathlib.Path(f"{flag}.{rank}").exists() for rank in range(3)))
    pool.signal(1, signal.SIGKILL)
    outcomes = pool.collect(stop_on_failure=False)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error_type == "DistBackendError", outcome.describe()
        assert "rank 1 (pid" in outcome.error, outcome.describe()
        assert ") failed: " in outcome.error, outcome.describe()


@pytest.mark.ranks(2, env={"Q7X2_HOST_ID": "{rank}"}, init="none", fresh=True)
def test_ranks_that_disagree_about_encryption(shared: str) -> None:
    rank = harness.current_rank()
    os.environ["Q7X2_ENCRYPT"] = str(rank)
    with pytest.raises(RuntimeError, match=r"ranks 0 and 1 .* have different Q7X2_ENCRYPT"):
        dist.init_process_group(
            "q7x2", init_method=f"file://{shared}/store", rank=rank, world_size=2
        )


@pytest.mark.ranks(2, env=STREAMS, fresh=True)
def test_what_a_process_does_not_change_later() -> None:
    """Its connections are those that it had when it began, whatever the environment says now."""
    os.environ.update({"Q7X2_STREAMS": "0", "Q7X2_ENCRYPT": str(dist.get_rank())})
    group = dist.new_group()
    assert {peer["path"] for peer in q7x2.describe(group).peers} == {"many connections"}
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor, group=group)
    assert_bits(tensor, torch.full((100_000,), 2.0))


@pytest.mark.ranks(2, env={**STREAMS, "Q7X2_ENCRYPT": "0"}, stays=True)
def test_without_encryption() -> None:
    assert paths() == {"many connections"}
    tensor = torch.ones(1_000_000)
    dist.all_reduce(tensor)
    assert_bits(tensor, torch.full((1_000_000,), 2.0))
