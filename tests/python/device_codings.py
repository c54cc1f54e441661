"""Compressed calls on a device, beside the same calls on CPU tensors."""

from __future__ import annotations

import q7x2
import stand_in
import torch
import torch.distributed as dist
from values import assert_bits

VOTES = ["sign", "sign:g=64"]
SIZE = 5_003  # no multiple of a group or of the world size


def normal(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def _calls(device: str, codec: str, step: int, dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    keeps = codec not in VOTES
    x = normal(size, rank).to(dtype).to(device)
    mean = normal(size, rank + 10).to(dtype).to(device)
    residual = (normal(size, rank + 20) / 8).to(device)
    whole = normal(world * size, rank + 30).to(dtype).to(device)
    errors = (normal(world * size, rank + 40) / 8).to(device)
    shard, gathered = x.new_empty(size), x.new_empty(world * size)
    q7x2.all_reduce(x, codec=codec, step=step, edges="all")
    q7x2.all_reduce(
        mean,
        codec=codec,
        op=dist.ReduceOp.AVG,
        residual=residual if keeps else None,
        step=step,
        edges="all",
    )
    q7x2.reduce_scatter_tensor(
        shard, whole, codec=codec, residual=errors if keeps else None, step=step, edges="all"
    )
    q7x2.all_gather_into_tensor(gathered, x, codec=codec, step=step, edges="all")
    return [x, mean, residual, shard, errors, gathered]


def expect_cpu_bits(
    device: str, codecs: list[str], dtype: torch.dtype = torch.float32, size: int = SIZE
) -> None:
    """Of results and residuals of each codec's calls, twice."""
    for codec in codecs:
        for step in range(2):
            expected = _calls("cpu", codec, step, dtype, size)
            with stand_in.slow(torch.accelerator.current_stream(), 0.001):
                # Used in the order of the stream, without a wait of the host.
                results = [result.clone() for result in _calls(device, codec, step, dtype, size)]
            for i, (result, target) in enumerate(zip(results, expected, strict=True)):
                assert_bits(result.cpu(), target, f"result {i} of {codec}, step {step}")
