"""The algorithm of a kind of call may change by the times of calls: the same on all ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2.cli import main
from values import assert_bits

SIZE = 5000  # elements
# How many algorithms look about as good depends on what a probe measures.
PREDICTABLE = {"Q7X2_PROBE": "0"}


def noise(call: int) -> torch.Tensor:
    """Values whose sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(100 * call + dist.get_rank())
    return torch.randn(SIZE, generator=generator) * 1000


def make_calls(count: int, group: dist.ProcessGroup) -> None:
    for call in range(count):
        tensor = noise(call)
        exact = tensor.double()
        dist.all_reduce(exact, group=group)
        dist.all_reduce(tensor, group=group)
        torch.testing.assert_close(tensor, exact.float(), rtol=1e-5, atol=1e-2)
        everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, tensor, group=group)
        for other in everybody:
            assert_bits(other, tensor, call)


def history_of(group: dist.ProcessGroup, size: int = 4 * SIZE) -> dict[str, Any]:
    size_class = 1 << (size - 1).bit_length()
    (kind,) = [
        each
        for each in q7x2.plan.plan_history(group)
        if each["collective"] == "all_reduce" and each["bytes"] == size_class
    ]
    return kind


@pytest.mark.beyond("gloo", "has no algorithms to choose from")
@pytest.mark.ranks(3, 4, env=PREDICTABLE)
def test_all_ranks_settle_alike(world_size: int) -> None:
    group = dist.new_group()
    make_calls(60, group)
    kind = history_of(group)
    candidates = [each["algorithm"] for each in kind["candidates"]]
    assert kind["calls"] == 60
    assert len(set(candidates)) == len(candidates) > 1
    events = kind["events"]
    assert [each["call"] for each in events][:3] == [0, 6, 24]
    assert events[0] == {"call": 0, "choices": [candidates[0]], "measured": {}}
    assert sorted(events[1]["choices"]) == sorted(candidates)
    assert len(events[-1]["choices"]) == 1
    assert events[-1]["measured"][candidates[0]]["seconds"] > 0
    for other in gather(kind):
        assert other == kind


def gather(value: Any) -> list[Any]:
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return everybody


def choices_of(group: dist.ProcessGroup) -> list[list[str]]:
    for _ in range(30):
        dist.all_reduce(torch.ones(SIZE), group=group)
    return [each["choices"] for each in history_of(group)["events"]]


@pytest.mark.beyond("gloo", "has no such option")
@pytest.mark.ranks(3, env=PREDICTABLE)
def test_the_options_keep_the_first_choice(world_size: int) -> None:
    assert q7x2.Options().refine
    off = dist.new_group(pg_options=q7x2.Options(refine=False))
    assert len(choices_of(off)) == 1
    # What rank 0 says counts.
    mixed = dist.new_group(pg_options=q7x2.Options(refine=dist.get_rank() == 0))
    assert len(choices_of(mixed)) == 3
    forced = dist.new_group(pg_options=q7x2.Options(algorithms="ring"))
    assert choices_of(forced) == [["ring"]]
    torch.use_deterministic_algorithms(True)
    try:
        deterministic = dist.new_group()
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(choices_of(deterministic)) == 1


@pytest.mark.beyond("gloo", "reads no such variable")
@pytest.mark.ranks(3, env={"Q7X2_REFINE": "0"})
def test_the_variable_keeps_the_first_choice(world_size: int) -> None:
    assert len(choices_of(dist.new_group())) == 1
    assert os.environ["Q7X2_REFINE"] == "0"


@pytest.mark.beyond("gloo", "has no algorithms to choose from")
@pytest.mark.ranks(3, env=PREDICTABLE)
def test_calls_in_progress_may_be_many(world_size: int) -> None:
    group = dist.new_group()
    tensors = [torch.full((SIZE,), float(call)) for call in range(150)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for call, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        assert tensor.eq(call * world_size).all(), call
    for other in gather(history_of(group)):
        assert other == history_of(group)


HISTORY = [
    {
        "collective": "all_reduce",
        "bytes": 2**24,
        "root": -1,
        "codec": "",
        "calls": 60,
        "candidates": [
            {"algorithm": name, "edges": "none", "slice_bytes": 2**19, "window": 4, "predicted": 1}
            for name in ("ring", "sra")
        ],
        "events": [
            {"call": 0, "choices": ["ring"], "measured": {}},
            {"call": 6, "choices": ["ring", "sra"], "measured": {}},
            {
                "call": 24,
                "choices": ["sra"],
                "measured": {
                    "ring": {"seconds": 0.25, "noise": 0.01},
                    "sra": {"seconds": 0.125, "noise": 0.02},
                },
            },
        ],
    }
]


def test_explain_shows_a_history(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text(json.dumps(HISTORY))
    command = ["plan", "explain", "--history", str(file)]
    assert main([*command, "--size", "10M"]) == 0
    text = capsys.readouterr().out
    for part in ("60 calls", "from call 24", "125 ms", "+- 2%", "ring", "sra"):
        assert part in text
    assert main([*command, "--size", "16M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == HISTORY
    assert main([*command, "--size", "1M"]) == 1
    assert "it has: all_reduce of up to 16 MiB" in capsys.readouterr().err
    file.write_text("[1]")
    assert main([*command, "--size", "1M"]) == 1
    assert "cannot read" in capsys.readouterr().err
