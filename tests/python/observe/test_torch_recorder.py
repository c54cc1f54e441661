"""PyTorch's own flight recorder, and others that listen to c10d's hooks, see a group's works."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from harness import wait_until
from seeds import seed
from torch._C import _distributed_c10d

pytestmark = [
    pytest.mark.beyond("gloo", "Gloo records by itself"),
    pytest.mark.skipif(
        not hasattr(_distributed_c10d, "FlightRecorderHook"),
        reason="this torch's recorder has no completion hooks; 2.15 and newer do",
    ),
]

RECORDS = {"TORCH_FR_BUFFER_SIZE": "5000", "Q7X2_FLIGHT_RECORDER": "5000"}
CALLS = 1000
# What PyTorch's recorder calls otherwise than q7x2's.
NAMES = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


def torchs() -> list[dict[str, Any]]:
    text = _distributed_c10d._dump_fr_trace_json(True, False, "q7x2")
    entries: list[dict[str, Any]] = json.loads(text).get("entries", [])
    return entries


def ours() -> list[dict[str, Any]]:
    return [each for each in q7x2.flight_recorder() if not each["q7x2"].get("internal")]


def plain(entry: dict[str, Any]) -> str:
    """The operation's name, without the backend's."""
    name = str(entry["profiling_name"]).partition(":")[2].partition(" ")[0]
    return NAMES.get(name, name)


def mixed_call(kind: str, size: int) -> None:
    me, ranks = dist.get_rank(), dist.get_world_size()
    tensor, output = torch.ones(size * ranks), torch.zeros(size * ranks)
    if kind == "message":
        if me == 0:
            dist.send(tensor, 1)
        elif me == 1:
            dist.recv(tensor, 0)
        return
    {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 1),
        "all_gather": lambda: dist.all_gather_into_tensor(output, tensor[:size]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(output[:size], tensor),
        "all_to_all": lambda: dist.all_to_all_single(output, tensor),
        "barrier": dist.barrier,
    }[kind]()


KINDS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("barrier", "message"),
)


@pytest.mark.ranks(2, env=RECORDS)
def test_both_recorders_agree_on_mixed_calls() -> None:
    chance = random.Random(seed())
    before = len(ours())
    for _ in range(CALLS):
        mixed_call(chance.choice(KINDS), chance.choice([1, 64, 3000]))
    wait_until(lambda: all(each["state"] == "completed" for each in torchs()))
    theirs, mine = torchs(), ours()[before:]
    assert [plain(each) for each in theirs] == [plain(each) for each in mine]
    assert len(theirs) == CALLS
    assert all(each["q7x2"]["state"] == "done" for each in mine)
    assert all(each["duration_ms"] > 0 for each in theirs)
    for one, other in zip(theirs, mine, strict=True):
        if plain(one) not in ("barrier", "send", "recv"):  # q7x2 counts the bytes of messages
            assert one["input_sizes"] == other["input_sizes"], (one, other)


@pytest.mark.ranks(2, env=RECORDS)
def test_a_call_that_waits_is_not_completed() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        wait_until(lambda: torchs()[0]["state"] == "completed")
        assert torchs()[-1]["state"] == "scheduled"
        dist.send(tensor, 1, tag=1)
        work.wait()
    else:
        dist.recv(tensor, 0, tag=1)
        dist.all_reduce(tensor)
    wait_until(lambda: all(each["state"] == "completed" for each in torchs()))


@pytest.mark.ranks(2, fresh=True, timeout=2)
def test_abort_hooks_are_told_of_failures() -> None:
    told = threading.Event()
    group = dist.group.WORLD
    assert group is not None
    assert group.supports_abort_hooks
    group.register_abort_hook(7, told.set)
    dist.all_reduce(torch.ones(1))
    assert not told.is_set()
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1))  # rank 1 does not call it
        wait_until(told.is_set)
        group.unregister_abort_hook(7)
    else:
        told.wait(10)
