"""Every collective and message on device tensors: the bits of CPU tensors."""

from __future__ import annotations

import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_calls import STRENGTHS, compare_calls
from pairs import nightly
from values import assert_bits

pytestmark = stand_in.needs_accelerator


@pytest.mark.parametrize("world", [nightly(2, "three ranks do more of the same"), 3])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_bits_are_those_of_cpu_tensors(
    strength: int, world: int, device_pool, shared: str, device: str
) -> None:
    stand_in.run(device_pool(world), compare_calls, shared, device, strength=strength)


CODECS = ["none", "bf16", "int4", "onebit", "topk:0.1", "sumint8", "auto"]


def _compressed(device: str, codec: str) -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(world * 4096, generator=generator)
    residual = torch.zeros_like(x).to(device) if codec not in ("none", "auto") else None
    x = x.to(device)
    q7x2.all_reduce(x, codec=codec, residual=residual, step=3)
    shard = torch.empty(4096, device=device)
    q7x2.reduce_scatter_tensor(shard, x, codec=codec, step=4)
    return [x, shard] if residual is None else [x, shard, residual]


def _compare_compressed(device: str) -> None:
    for codec in CODECS:
        expected = _compressed("cpu", codec)
        with stand_in.slow(torch.accelerator.current_stream(), 0.001):
            results = [result.clone() for result in _compressed(device, codec)]
        for i, (result, target) in enumerate(zip(results, expected, strict=True)):
            assert_bits(result.cpu(), target, f"result {i} of codec {codec}")


def test_compressed_bits_are_those_of_cpu_tensors(device_pool, shared: str, device: str) -> None:
    stand_in.run(device_pool(2), _compare_compressed, shared, device)


def _several_devices(device: str) -> None:
    rank = dist.get_rank()
    one, two = torch.ones(1000, device=f"{device}:0"), torch.ones(1000, device=f"{device}:1")
    with (
        stand_in.slow(torch.accelerator.current_stream(0), 0.01),
        stand_in.slow(torch.accelerator.current_stream(1), 0.005),
    ):
        one += rank
        two *= 2 + rank
        dist.all_reduce(one)
        dist.all_reduce(two)
        one += 1
        two += 1
    assert one.tolist() == [4.0] * 1000
    assert two.tolist() == [6.0] * 1000
    with pytest.raises(RuntimeError, match=f"on one device, got {device}:0 and {device}:1"):
        dist.all_gather([one, two], one)
    with pytest.raises(RuntimeError, match="expected cpu, cuda, or an accelerator"):
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([one.to("meta")])
    # Contributions of one rank, added on the host before they leave it.
    backend = dist.group.WORLD._get_backend(torch.device(device))
    several = [torch.full((5,), float(rank + i), device=f"{device}:0") for i in range(3)]
    backend.allreduce(several).wait()
    for tensor in several:
        assert (tensor + 1).tolist() == [10.0] * 5


def test_several_devices_of_a_process(device_pool, shared: str, device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    stand_in.run(device_pool(2), _several_devices, shared, device)
