"""``q7x2.stats``: counts, bytes and times of a known program."""

from __future__ import annotations

import ast
import subprocess
import threading
import time
from typing import Any

import interpreters
import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import current_rank

ELEMENTS = 12_000
BYTES = 4 * ELEMENTS


def counted(reset: bool = False) -> dict[str, Any]:
    """The operations of the default group."""
    name = dist.group.WORLD.group_name
    groups = [each for each in q7x2.stats(reset=reset)["groups"] if each["open"]]
    (group,) = [each for each in groups if each["name"] == name]
    assert group["rank"] == dist.get_rank()
    assert group["ranks"] == dist.get_world_size()
    operations: dict[str, Any] = group["operations"]
    return operations


def sent(counters: dict[str, Any]) -> int:
    return int(counters["sent_network_bytes"] + counters["sent_memory_bytes"])


def received(counters: dict[str, Any]) -> int:
    return int(counters["received_network_bytes"] + counters["received_memory_bytes"])


def warm_up(tensor: torch.Tensor) -> None:
    """What precedes the first call of a kind does not count."""
    dist.all_reduce(tensor)
    counted(reset=True)


@pytest.mark.ranks(2, 3, 4)
def test_a_ring_sends_what_a_ring_must_send(world_size: int) -> None:
    tensor = torch.ones(ELEMENTS)
    with q7x2.collectives.algorithm("ring"):
        warm_up(tensor)
        for _ in range(5):
            dist.all_reduce(tensor)
    reduce = counted()["all_reduce"]
    assert reduce["count"] == 5
    assert reduce["failed"] == 0
    assert reduce["input_bytes"] == reduce["output_bytes"] == 5 * BYTES
    # Each rank passes on all parts but one, twice. Parts are multiples of 64 bytes.
    expected = 5 * 2 * (world_size - 1) * BYTES / world_size
    slack = 5 * 2 * (world_size - 1) * 64
    assert abs(sent(reduce) - expected) <= slack
    assert abs(received(reduce) - expected) <= slack


@pytest.mark.ranks(3)
def test_what_some_sent_others_received(world_size: int) -> None:
    del world_size
    tensor = torch.ones(ELEMENTS)
    output = [torch.empty(ELEMENTS) for _ in range(3)]
    warm_up(tensor)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 1)
    dist.all_gather(output, tensor)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)
    operations = counted()
    operations.pop("preparation", None)
    totals: list[Any] = [None] * 3
    dist.all_gather_object(
        totals, {kind: (sent(each), received(each)) for kind, each in operations.items()}
    )
    for kind in ("all_reduce", "broadcast", "all_gather"):
        assert operations[kind]["count"] == 1
        assert sum(each[kind][0] for each in totals) == sum(each[kind][1] for each in totals) > 0
    assert totals[0]["send"] == (BYTES, 0)
    assert totals[1]["receive"] == (0, BYTES)


@pytest.mark.ranks(2)
def test_counters_begin_again() -> None:
    dist.barrier()
    counted(reset=True)
    assert counted() == {}
    assert q7x2.stats()["since_ns"] <= q7x2.stats()["now_ns"]
    dist.barrier()
    assert counted()["barrier"]["count"] == 1


@pytest.mark.ranks(2)
def test_quantiles_are_in_order() -> None:
    tensor = torch.ones(10)
    warm_up(tensor)
    for _ in range(50):
        dist.all_reduce(tensor)
    reduce = counted()["all_reduce"]
    took = reduce["took"]
    assert 0 < took["p50"] <= took["p90"] <= took["p99"]
    assert took["p99"] <= took["longest"] * (1 + 1 / 16)
    assert took["longest"] <= reduce["seconds"]["took"]
    assert reduce["predicted"]["seconds"] > 0
    assert reduce["predicted"]["took"] == pytest.approx(reduce["seconds"]["took"])


@pytest.mark.ranks(2, env={"Q7X2_LANES": "0"})
@pytest.mark.parametrize("codec", ["none", "int8", "topk:0.05"])
def test_phases_are_no_longer_than_the_operation(codec: str) -> None:
    for elements in (1, 1000, 300_000):
        q7x2.all_reduce(torch.randn(elements), codec=codec)
    entries = [e for e in q7x2.flight_recorder() if not e["q7x2"].get("internal")]
    for entry in entries:
        mine = entry["q7x2"]
        work = mine["work_ns"]
        duration = mine["finished_ns"] - entry["time_discovered_started_ns"]
        # What is selected is selected before the operation is queued.
        phases = sum(work.values()) - work["select"] + mine["waited_ns"]
        assert min(work.values()) >= 0
        assert 0 <= phases <= duration
        if mine["waited_ns"] > 0 and "waited_most" in mine:
            assert mine["waited_most"]["rank"] == 1 - dist.get_rank()
            assert mine["waited_most"]["percent"] <= 100
    large = entries[-1]["q7x2"]
    assert large["predicted_ns"] > 0
    if codec == "none":
        assert large["work_ns"]["reduce"] > 0
        assert large["work_ns"]["encode"] == 0
    else:
        assert large["codec"] == codec
        assert large["work_ns"]["encode"] > 0
        assert large["work_ns"]["decode"] > 0
        sent_bytes = sum(large["sent"].values())
        assert 0 < sent_bytes < 0.5 * large["bytes"]
    assert (large["work_ns"]["select"] > 0) == codec.startswith("topk")


@pytest.mark.ranks(3)
def test_a_late_rank_is_the_one_that_was_waited_for() -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        time.sleep(0.3)  # late on purpose
    dist.all_reduce(tensor)
    last = q7x2.flight_recorder()[-1]["q7x2"]
    if dist.get_rank() != 1:
        assert last["waited_ns"] > 0
        assert last["waited_most"]["rank"] == 1


def test_without_a_group_there_is_nothing() -> None:
    code = "import q7x2; print(q7x2.stats())"
    done = subprocess.run(
        [interpreters.python(), "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    counted = ast.literal_eval(done.stdout)
    assert counted.pop("now_ns") > 0
    assert counted == {"since_ns": None, "groups": [], "hooks": []}


def reductions() -> list[int]:
    """Of each group that has reduced, the oldest first."""
    return [
        group["operations"]["all_reduce"]["count"]
        for group in q7x2.stats()["groups"]
        if "all_reduce" in group["operations"]
    ]


def begin(shared: str, life: int) -> None:
    """A default group of two ranks, of which each life has a new one."""
    store = dist.FileStore(f"{shared}/{life}", 2)
    dist.init_process_group("q7x2", store=store, rank=current_rank(), world_size=2)


@pytest.mark.ranks(2, fresh=True, init="none")
def test_counters_outlive_their_groups(shared: str) -> None:
    """Each time all groups are destroyed, and made again."""
    for lives in range(1, 4):
        begin(shared, lives)
        for _ in range(lives):
            dist.all_reduce(torch.ones(10))
        open_groups = [group for group in q7x2.stats()["groups"] if group["open"]]
        assert len(open_groups) == 1
        before = open_groups[0]["operations"]["all_reduce"]
        dist.destroy_process_group()
        groups = q7x2.stats()["groups"]
        assert [group["open"] for group in groups] == [False] * lives
        assert groups[-1]["operations"]["all_reduce"] == before
        assert groups[-1]["identity"] == open_groups[0]["identity"]
        assert reductions() == list(range(1, lives + 1))
    q7x2.stats(reset=True)
    assert q7x2.stats()["groups"] == []
    assert q7x2.stats()["since_ns"] is not None


@pytest.mark.ranks(2, fresh=True, init="none")
def test_a_thread_that_asks_all_the_time_never_sees_less(shared: str) -> None:
    """As an exporter does, also while the groups end."""
    seen: list[int] = []
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            seen.append(sum(reductions()))

    thread = threading.Thread(target=ask)
    thread.start()
    for life in range(10):
        begin(shared, life)
        dist.all_reduce(torch.ones(10))
        dist.destroy_process_group()
    has_ended.set()
    thread.join()
    assert seen == sorted(seen)
    assert reductions() == [1] * 10
