"""``send`` and ``recv`` between hosts that use many connections (docs/wide.md)."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal

import harness
import pytest
import q7x2
import torch
import torch.distributed as dist
from deadlines import NEVER
from values import assert_bits

STREAMS = {"Q7X2_STREAMS": "1", "Q7X2_HOST_ID": "{rank}"}
SIZES = (0, 1, 1000, 100_000, 3_000_000)  # the last one beyond what may come unasked
TAGS = 3
over_streams = pytest.mark.ranks(3, env=STREAMS, stays=True)


def payload(source: int, tag: int, size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64) + 1000.0 * source + 10.0 * tag


@over_streams
@pytest.mark.parametrize("expected", [False, True], ids=["send first", "receive first"])
def test_messages_of_all_sizes_meet_receives_of_their_tags(expected: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world) if other != rank]
    for size in SIZES:
        got = {
            (other, tag): torch.empty(size, dtype=torch.float64)
            for other in others
            for tag in reversed(range(TAGS))
        }

        def receive(got: dict[tuple[int, int], torch.Tensor] = got) -> list[dist.Work]:
            return [dist.irecv(to, other, tag=tag) for (other, tag), to in got.items()]

        works = receive() if expected else []
        for other in others:
            for tag in range(TAGS):
                works.append(dist.isend(payload(rank, tag, size), other, tag=tag))
        works += [] if expected else receive()
        for work in works:
            work.wait()
        for (other, tag), to in got.items():
            assert_bits(to, payload(other, tag, size))


@over_streams
def test_messages_of_one_tag_keep_their_order() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1 + 31 * (i % 9) ** 5 for i in range(60)]
    sends = [
        dist.isend(torch.full((size,), float(i)), (rank + 1) % world)
        for i, size in enumerate(sizes)
    ]
    for i, size in enumerate(sizes):
        got = torch.empty(size)
        dist.recv(got, (rank - 1) % world)
        assert_bits(got, torch.full((size,), float(i)))
    for send in sends:
        send.wait()


@over_streams
def test_what_a_receive_waits_for_is_not_ucx() -> None:
    rank = dist.get_rank()
    got = torch.empty(10)
    if rank == 0:
        work = dist.irecv(got, 1)
        (waits,) = [
            entry["q7x2"]["waits"] for entry in q7x2.flight_recorder() if entry["q7x2"].get("waits")
        ]
        assert [wait["via"] for wait in waits] == ["many connections"]
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(got, 0)


@pytest.mark.ranks(5, init="none", fresh=True)
@pytest.mark.parametrize("size", [1, 300_000, 3_000_000])
def test_a_receive_from_any_rank(shared: str, size: int) -> None:
    """It may come through memory of the host, over many connections, or over UCX."""
    rank = harness.current_rank()
    os.environ["Q7X2_STREAMS"] = "0" if rank == 4 else "1"
    os.environ["Q7X2_HOST_ID"] = str(rank // 2)
    dist.init_process_group("q7x2", init_method=f"file://{shared}/store", rank=rank, world_size=5)
    rounds = 12
    if rank == 0:
        paths = {peer["rank"]: peer["path"] for peer in q7x2.describe().peers}
        assert paths[1] == "shared memory", paths
        assert paths[2] == paths[3] == "many connections", paths
        counts = dict.fromkeys(range(1, 5), 0)
        for turn in range(4 * rounds):
            got = torch.empty(size)
            source = dist.recv(got)
            assert_bits(got, torch.full((size,), 100.0 * source + counts[source]))
            counts[source] += 1
            if turn == 2 * rounds - 1:  # from here on, receives wait for messages
                dist.barrier()
        assert set(counts.values()) == {rounds}
    else:
        sends = [dist.isend(torch.full((size,), 100.0 * rank + i), 0) for i in range(rounds // 2)]
        dist.barrier()
        sends += [
            dist.isend(torch.full((size,), 100.0 * rank + i), 0) for i in range(rounds // 2, rounds)
        ]
        for send in sends:
            send.wait()
    dist.barrier()
    dist.destroy_process_group()


@over_streams
def test_a_message_of_another_size_is_an_error_on_both_sides_of_it() -> None:
    rank = dist.get_rank()
    group = dist.new_group()
    for size in (10, 3_000_000):
        if rank == 0:
            for delta in (-1, 1):
                with pytest.raises(dist.DistBackendError, match=r"rank 1 sent|of rank 1 is longer"):
                    dist.recv(torch.empty(size + delta), 1, group=group)
        elif rank == 1:
            for _ in range(2):
                dist.send(torch.ones(size), 0, group=group)
        dist.barrier()


@over_streams
def test_a_receive_that_times_out_takes_nothing_that_comes_later() -> None:
    rank = dist.get_rank()
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.3))
    for source in (1, None):
        if rank == 0:
            late = torch.full((1000,), -1.0)
            with pytest.raises(dist.DistBackendError, match=r"[Tt]imed out"):
                dist.recv(late, source, group=group)
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1000), 0, group=group)
        if rank == 0:
            got = torch.empty(1000)
            dist.recv(got, source, group=group)
            assert_bits(got, torch.ones(1000))
            assert_bits(late, torch.full((1000,), -1.0))
        dist.barrier()


def body_wait_for_rank_1(flag: str, source: int | None, size: int) -> None:
    pathlib.Path(f"{flag}.{dist.get_rank()}").touch()
    if dist.get_rank() == 1:
        signal.pause()
    dist.recv(torch.empty(size), source)


@pytest.mark.parametrize("source", [1, None], ids=["known", "any"])
def test_a_killed_sender_is_named(new_pool, shared: str, source: int | None) -> None:
    flag = f"{shared}/ready"
    pool = new_pool(2, env=STREAMS)
    pool.start(
        body_wait_for_rank_1,
        harness.GroupSpec("q7x2", timeout=NEVER),
        flag=flag,
        source=source,
        size=1000,
    )
    harness.wait_until(lambda: all(pathlib.Path(f"{flag}.{rank}").exists() for rank in range(2)))
    pool.signal(1, signal.SIGKILL)
    outcome = pool.collect(stop_on_failure=False)[0]
    assert outcome.error_type == "DistBackendError", outcome.describe()
    assert "rank 1 (pid" in outcome.error, outcome.describe()
