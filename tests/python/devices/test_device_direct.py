"""Tensors that UCX moves from device to device: right bits, in stream order, and no other copies.

UCX's own module for CUDA runs here, on a stand-in for CUDA's driver (tests/device/libcuda) that
knows the memory of the stand-in accelerator. So CUDA IPC is what UCX does with real devices, but
for the driver.
"""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from typing import Any

import harness
import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_calls import STRENGTHS, compare_calls, descend
from pairs import each_value
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import Signals, assert_bits

pytestmark = stand_in.needs_driver

MIB = 1 << 20


def _calls(path: str) -> int:
    """How many calls went that way so far."""
    ways = q7x2.describe().device_paths
    return sum(way["calls"] for way in ways if way["path"] == path)


def _compare_all(strength: int) -> None:
    compare_calls("fake", strength)
    assert _calls("direct") > 40


@pytest.mark.parametrize(("world", "path"), each_value([3, 2], ["auto", "direct"]))
@pytest.mark.parametrize("strength", STRENGTHS)
def test_bits_are_those_of_cpu_tensors(
    strength: int, world: int, path: str, device_pool, shared: str
) -> None:
    pool = device_pool(world, with_driver=True)
    stand_in.run(pool, _compare_all, shared, device_path=path, strength=strength)


def _all_gather(elements: int) -> torch.Tensor:
    world = dist.get_world_size()
    x = torch.arange(elements, dtype=torch.float32).to("fake") + dist.get_rank()
    whole = torch.empty(world * elements, device="fake")
    dist.all_gather_into_tensor(whole, x)
    return whole.cpu()


def _reduce_in_parts() -> torch.Tensor:
    x = torch.arange(MIB, dtype=torch.float32).to("fake")
    dist.all_reduce(x)
    return x.cpu()


def _count_copies() -> dict[str, dict[str, int]]:
    _all_gather(10)  # UCX maps the memory of the others
    return {
        "all_gather": stand_in.copies_of(lambda: _all_gather(MIB)),
        "all_reduce": stand_in.copies_of(_reduce_in_parts),
    }


def test_each_byte_is_copied_once_and_none_through_the_host(device_pool, shared: str) -> None:
    ranks = stand_in.run(
        device_pool(2, with_driver=True), _count_copies, shared, device_path="auto"
    )
    for call in ("all_gather", "all_reduce"):
        copied = {key: sum(rank[call][key] for rank in ranks) for key in ranks[0][call]}
        # Each rank's 4 MiB, or of a sum each half, there and back.
        assert copied["bytes_peer"] == 2 * 4 * MIB, (call, copied)
        for way in ("to_host", "to_device", "on_device"):
            assert copied[way] == 0, (call, copied)


def _staged() -> None:
    compare = torch.arange(1000.0)
    assert_bits(_all_gather(1000), torch.cat([compare, compare + 1]), "staged")
    assert _calls("direct") == 0
    assert _calls("staged") > 0


def test_staged_calls_can_be_had(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2, with_driver=True), _staged, shared, device_path="staged")


def _own_ways() -> None:
    """Ranks that have strided, overlapping and plain tensors, in one call."""
    rank = dist.get_rank()
    before = _calls("direct")
    x = torch.arange(3000.0).reshape(3, 1000).to("fake")
    dist.all_reduce(x.t() if rank == 0 else x.t().contiguous())
    whole = torch.zeros(4000, device="fake")
    dist.all_gather_into_tensor(whole[:2000], whole[500:1500] if rank == 0 else whole[1000:2000])
    torch.fake.synchronize()
    assert _calls("direct") - before == (0 if rank == 0 else 2), str(q7x2.describe())
    assert x.cpu()[:, 1:].flatten()[0].item() == (2.0 if rank == 0 else 1.0)


def test_ranks_stage_what_cannot_stay(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2, with_driver=True), _own_ways, shared, device_path="auto")


def _in_place() -> None:
    """As FSDP2 does: the shard is a part of what is gathered."""
    rank, world = dist.get_rank(), dist.get_world_size()
    before = _calls("direct")
    whole = torch.full((world * 5000,), -1.0).to("fake")
    whole[rank * 5000 : (rank + 1) * 5000] = rank
    dist.all_gather_into_tensor(whole, whole[rank * 5000 : (rank + 1) * 5000])
    expected = torch.arange(float(world)).repeat_interleave(5000)
    assert_bits(whole.cpu(), expected, "in place")
    assert _calls("direct") - before == 1


def test_gathers_in_place(device_pool, shared: str) -> None:
    stand_in.run(device_pool(3, with_driver=True), _in_place, shared, device_path="auto")


def _premultiplied() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    before = _calls("direct")
    op = dist._make_nccl_premul_sum(0.5)
    whole = torch.arange(world * 1000.0) + rank
    x = whole.to("fake")
    part = torch.empty(1000, device="fake")
    dist.reduce_scatter_tensor(part, x, op)
    assert_bits(x.cpu(), whole, "the input")
    dist.all_reduce(x, op)
    expected = (world * torch.arange(world * 1000.0) + sum(range(world))) * 0.5
    assert_bits(x.cpu(), expected, "all_reduce")
    assert_bits(part.cpu(), expected[rank * 1000 : (rank + 1) * 1000], "reduce_scatter")
    assert _calls("direct") - before == 2


def test_premultiplied_sums_are_direct(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2, with_driver=True), _premultiplied, shared, device_path="auto")


def _several_types() -> None:
    """One call of several types. A device adds up no integers, so nothing of it is direct."""
    rank, world = dist.get_rank(), dist.get_world_size()
    floats = (torch.arange(world * 100.0) + rank).to("fake")
    integers = (torch.arange(world * 100) + rank).to("fake")
    outputs = [torch.empty(100, device="fake"), torch.empty(100, dtype=torch.int64, device="fake")]
    with dist._coalescing_manager(device=torch.device("fake")):
        dist.reduce_scatter_tensor(outputs[0], floats)
        dist.reduce_scatter_tensor(outputs[1], integers)
    expected = world * torch.arange(rank * 100, (rank + 1) * 100) + world * (world - 1) // 2
    assert_bits(outputs[0].cpu(), expected.float(), "floats")
    assert_bits(outputs[1].cpu(), expected, "integers")


def test_several_types_in_one_call(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2, with_driver=True), _several_types, shared, device_path="auto")


def _until_it_fails(x: torch.Tensor) -> str:
    """Add up again and again. The text of the error."""

    def calls() -> None:
        while True:
            dist.all_reduce(x)
            torch.fake.synchronize()  # no gate stays shut

    with pytest.raises(dist.DistBackendError) as caught:
        calls()
    return str(caught.value)


def _mixed() -> str:
    return _until_it_fails(torch.ones(1000, device="fake" if dist.get_rank() == 0 else "cpu"))


def test_a_rank_with_cpu_tensors_is_told(new_pool, shared: str) -> None:
    for text in stand_in.run(new_pool(2), _mixed, shared, device_path="auto"):
        assert "ranks disagree" in text, text
        assert "sum, between devices)" in text, text
        assert re.search(r"rank 1 \(pid \d+ on \S+\) called all_reduce \([^)]*, sum\)", text), text


def _impossible() -> None:
    with pytest.raises(RuntimeError, match="UCX cannot send memory of a device from rank 0: "):
        dist.all_reduce(torch.ones(10, device="fake"))
    x = torch.ones(10)
    dist.all_reduce(x)
    assert x[0] == dist.get_world_size()


def test_what_ucx_cannot_do_is_refused(new_pool, shared: str) -> None:
    """Without CUDA's driver, of which UCX would need to know the memory."""
    pool = new_pool(2, env={"Q7X2_DEVICE_PATH": "direct"})
    stand_in.run(pool, _impossible, shared)


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match="expected auto, staged or direct, got 'ipc'"):
        q7x2.Options(device_path="ipc")


def _survive(victim: int) -> str:
    x = torch.ones(8 * MIB, device="fake")
    dist.all_reduce(x)
    if dist.get_rank() == victim:
        dist.all_reduce(x, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    text = _until_it_fails(x)
    assert (torch.ones(10, device="fake") + 1).cpu()[0] == 2.0
    return text


def test_a_peer_that_dies_is_named_and_streams_go_on(new_pool, shared: str) -> None:
    with pytest.raises(harness.RankFailure) as caught:
        stand_in.run(new_pool(3), _survive, shared, device_path="auto", victim=1)
    outcomes = caught.value.outcomes
    assert [outcome.kind for outcome in outcomes] == ["ok", "died", "ok"], str(caught.value)
    assert "rank 1" in outcomes[0].value
    assert "rank 1" in outcomes[2].value


def _train(device: str, path_calls: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device)
    descend(DDP(model, bucket_cap_mb=0.05), model, device, steps=5, width=64)
    assert not path_calls or _calls("direct") > 5
    return [parameter.detach().cpu() for parameter in model.parameters()]


def _compare_training() -> None:
    for result, target in zip(_train("fake", True), _train("cpu", False), strict=True):
        torch.testing.assert_close(result, target)


def test_ddp_trains(device_pool, shared: str) -> None:
    stand_in.run(device_pool(2, with_driver=True), _compare_training, shared, device_path="auto")


def _late(seconds: float) -> Any:
    """The output is still read when the other rank has begun long ago."""
    rank = dist.get_rank()
    x = torch.full((100_000,), float(rank), device="fake")
    stream = torch.accelerator.current_stream()
    if rank == 1:
        with stand_in.slow(stream, seconds):
            x += 1  # the call must wait for it
    dist.broadcast(x, 0)
    y = x.clone()
    return y.cpu().unique().tolist()


def test_calls_wait_for_the_callers_stream(device_pool, shared: str) -> None:
    results = stand_in.run(
        device_pool(2, with_driver=True), _late, shared, device_path="auto", seconds=0.3
    )
    assert results == [[0.0], [0.0]]


def _time_out() -> str:
    x = torch.ones(1000, device="fake")
    signals = Signals()
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(timedelta(seconds=0.5))
        signals.give("rank 0 has given up")
        torch.fake.synchronize()
        return str(caught.value)
    signals.wait("rank 0 has given up")
    return ""


def test_a_timeout_opens_the_streams(device_pool, shared: str) -> None:
    texts = stand_in.run(device_pool(2, with_driver=True), _time_out, shared, device_path="auto")
    assert "timed out" in texts[0].lower() or "timeout" in texts[0].lower(), texts
