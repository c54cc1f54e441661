"""Every collective and message, on tensors of a device that is named: a function per kind of call.

Each returns what the call wrote, for a comparison with the same call on CPU tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import q7x2
import stand_in
import torch
import torch.distributed as dist
from pairs import OTHERS, covering, nightly
from torch import nn
from values import assert_bits, integers, payload


def _all_reduce(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        x = integers(dist.get_rank(), size, dtype).to(device)
        dist.all_reduce(x, op)
        results.append(x)
    return results


def _reduce(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = integers(dist.get_rank(), size, dtype).to(device)
    dist.reduce(x, 1)
    return [x] if dist.get_rank() == 1 else []


def _broadcast(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = payload(dist.get_rank(), size, dtype).to(device)
    dist.broadcast(x, 1)
    return [x]


def _all_gather(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = payload(dist.get_rank(), size, dtype).to(device)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    whole = torch.empty(dist.get_world_size() * size, dtype=dtype, device=device)
    dist.all_gather_into_tensor(whole, x)
    return [*parts, whole]


def _reduce_scatter(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    world = dist.get_world_size()
    whole = integers(dist.get_rank(), world * size, dtype).to(device)
    one = torch.empty(size, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(one, whole)
    two = torch.empty_like(one)
    dist.reduce_scatter(two, list(whole.chunk(world)) if size else [whole] * world)
    return [one, two, whole]


def _gather_and_scatter(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = payload(dist.get_rank(), size, dtype).to(device)
    is_root = dist.get_rank() == 0
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())] if is_root else None
    dist.gather(x, parts)
    y = torch.empty_like(x)
    dist.scatter(y, parts)
    return [y, *(parts or [])]


def _all_to_all(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    world, rank = dist.get_world_size(), dist.get_rank()
    x = payload(rank, world * size, dtype).to(device)
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    lengths = [(rank + 1) * (peer + 1) for peer in range(world)]
    uneven = payload(rank, sum(lengths), dtype).to(device)
    z = torch.empty_like(uneven)
    dist.all_to_all_single(z, uneven, lengths, lengths)
    return [y, z]


def _messages(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = payload(rank, size, dtype).to(device)
    y, z = torch.empty_like(x), torch.empty_like(x)
    right, left = (rank + 1) % world, (rank - 1) % world
    receive = dist.irecv(y, left)
    dist.isend(x, right)
    receive.wait()
    exchange = [dist.P2POp(dist.isend, y, right), dist.P2POp(dist.irecv, z, left)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return [y, z]


def _coalesced(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    xs = [integers(dist.get_rank(), size + i, dtype, i).to(device) for i in range(3)]
    with dist._coalescing_manager(device=torch.device(device), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    return xs


def _strided(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = integers(dist.get_rank(), [4, size], dtype).to(device)
    dist.all_reduce(x.t())
    dist.broadcast(x[:, ::2], 0)
    return [x]


def _blocks(device: str, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    x = integers(dist.get_rank(), size, dtype)
    x[size // 8 : -size // 8] = 0
    x = x.to(device)
    q7x2.all_reduce(x, codec="blocks")
    return [x]


CALLS = [
    _all_reduce,
    _reduce,
    _broadcast,
    _all_gather,
    _reduce_scatter,
    _gather_and_scatter,
    _all_to_all,
    _messages,
    _coalesced,
    _strided,
    _blocks,
]


def descend(model: nn.Module, weights: nn.Module, device: str, steps: int, width: int) -> None:
    """Train ``model``, which has the parameters of ``weights``, on data of each rank's own."""
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(8, width, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


SIZES = [0, 1, 1023, 70_000]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]

# By how many of a call, a size and a dtype meet in each combination.
STRENGTHS = [2, nightly(3, OTHERS[2])]


def compare_calls(device: str, strength: int) -> None:
    """Every call gives the bits of CPU tensors, in the order of the current stream."""
    for call, size, dtype in covering(list(itertools.product(CALLS, SIZES, DTYPES)), strength):
        _compare_one(call, device, size, dtype)


def _compare_one(
    call: Callable[..., list[torch.Tensor]], device: str, size: int, dtype: torch.dtype
) -> None:
    expected = call("cpu", size, dtype)
    # The first operations of a call are still to come when it is made.
    with stand_in.slow(torch.accelerator.current_stream(), 0.001):
        results = call(device, size, dtype)
        # Used in the order of the stream, without a wait of the host.
        results = [result.clone() for result in results]
    assert len(results) == len(expected)
    for result, target in zip(results, expected, strict=True):
        assert result.device.type == device
        assert_bits(result.cpu(), target, f"{call.__name__} of {size} {dtype}")
