"""Inputs that every rank can compute for every other rank, and comparisons that name the case."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pairs import nightly
from torch import nn

FP8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
HALF = [torch.float16, torch.bfloat16]
REAL = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*SIGNED, *UNSIGNED, torch.bool, *HALF, *REAL, *FP8, *COMPLEX]

# Group sizes: those where algorithms differ, and the fewest that show a mistake. What ranks do to
# each other shows with three of them; with two it shows in the tests that have `WORLDS`.
WORLDS = (1, 2, 3, 4, 5)
FEW = (nightly(2, "three ranks do the same, and more"), 3)
f32 = torch.float32

# What Gloo can be asked to validate.
GLOO_MOVES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
    *HALF,
    *REAL,
]


def meet() -> int:
    """Return when every rank of the default group has called it. It sends no message of the group.

    The default store is what the ranks meet at, so it also works after the group has failed.

    Returns:
        How often they have met before.
    """
    store = dist.distributed_c10d._get_default_store()
    calls, ranks = store.add("met", 1), dist.get_world_size()
    turn = (calls - 1) // ranks
    if calls % ranks == 0:
        store.set(f"all met {turn}", "1")
    # Of its own: the store has the timeout of the group, which some tests make short.
    store.wait([f"all met {turn}"], timedelta(seconds=120))
    return turn


class Signals:
    """What the ranks of a test tell each other by the store. All ranks make it together.

    It sends no message of the group, so it also works while a call of the group waits.
    """

    def __init__(self) -> None:
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"signals {meet()}", store)

    def give(self, name: str, value: str = "") -> None:
        self._store.set(name, value)

    def is_given(self, name: str) -> bool:
        return self._store.check([name])

    def wait(self, name: str) -> str:
        """Return the value of a signal when a rank has given it."""
        self._store.wait([name], timedelta(seconds=120))
        return self._store.get(name).decode()


class Clock:
    """Stands for the module ``time`` in a module under test; a test says what has passed."""

    def __init__(self) -> None:
        self.passed = 0.0  # seconds, besides those that really pass

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


# Sizes around the borders of vectors, cache lines, pages and the switch points of algorithms.
SIZES = [0, 1, 2, 3, 7, 17, 64, 1023, 4097, 65537]


def moved_dtypes() -> list[torch.dtype]:
    """The dtypes that the group's backend moves."""
    return GLOO_MOVES if dist.get_backend() == "gloo" else ALL


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes a reference for ``dtype``."""
    if dtype.is_complex:
        return torch.complex128
    if dtype.is_floating_point:
        return torch.float32 if dtype in (*HALF, *FP8) else torch.float64
    return torch.int64


def payload(
    rank: int, shape: int | Sequence[int], dtype: torch.dtype, salt: int = 0
) -> torch.Tensor:
    """Random bytes as a tensor: NaN payloads and denormals included (bools are 0 or 1)."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    generator = torch.Generator().manual_seed(1 + 1000003 * salt + rank)
    count = math.prod(shape)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    width = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * width,), dtype=torch.uint8, generator=generator)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return raw.view(dtype).reshape(shape)


def integers(
    rank: int, shape: int | Sequence[int], dtype: torch.dtype, salt: int = 0
) -> torch.Tensor:
    """Small whole numbers: their sums over a few ranks are exact in every dtype."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    generator = torch.Generator().manual_seed(7 + 1000003 * salt + rank)
    low = 0 if dtype in UNSIGNED or dtype is torch.bool else -1
    high = 2 if dtype is torch.bool else 3
    values = torch.randint(low, high, shape, generator=generator)
    if dtype.is_complex:
        other = torch.randint(low, high, shape, generator=generator)
        return torch.complex(values.double(), other.double()).to(dtype)
    return values.to(dtype)


def reals(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11 + 1000003 * salt + rank)
    return torch.randn(size, generator=generator).to(dtype)


def sum_of(
    world_size: int, shape: int | Sequence[int], dtype: torch.dtype, salt: int = 0
) -> torch.Tensor:
    """The sum over all ranks of their ``integers``."""
    total = integers(0, shape, dtype, salt).clone()
    for rank in range(1, world_size):
        total += integers(rank, shape, dtype, salt)
    return total


def blank(shape: int | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An output tensor full of 0x5a (bools: false), so that what is not written shows."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    tensor = torch.empty(shape, dtype=dtype)
    if dtype is torch.bool:
        return tensor.zero_()
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).fill_(0x5A)
    return tensor


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_bits(actual: torch.Tensor, expected: torch.Tensor, case: object = "") -> None:
    """Equal shape, dtype and bits."""
    assert actual.dtype == expected.dtype, f"{case}: dtype {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{case}: shape {actual.shape}, not {expected.shape}"
    if torch.equal(raw(actual), raw(expected)):
        return
    width = max(1, actual.element_size())
    wrong = (raw(actual) != raw(expected)).view(-1, width).any(1).nonzero().flatten()
    first = int(wrong[0])
    raise AssertionError(
        f"{case}: {len(wrong)} of {actual.numel()} elements differ, the first at {first}: "
        f"{actual.contiguous().reshape(-1)[first]} in place of "
        f"{expected.contiguous().reshape(-1)[first]}"
    )


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    case: object = "",
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=rtol, atol=atol, msg=lambda text: f"{case}: {text}"
    )


def everybody(value: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, which have one shape."""
    values = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(values, value.detach().contiguous())
    return values


def assert_same_on_all_ranks(tensors: list[torch.Tensor], case: object = "") -> None:
    sizes = [raw(tensor).numel() for tensor in tensors]
    first, *others = everybody(torch.cat([raw(tensor) for tensor in tensors]))  # in one message
    for other in others:
        for i, (mine, theirs) in enumerate(
            zip(first.split(sizes), other.split(sizes), strict=True)
        ):
            kind, shape = tensors[i].dtype, tensors[i].shape
            of_rank_0, of_another = (b.clone().view(kind).view(shape) for b in (mine, theirs))
            assert_bits(of_another, of_rank_0, (case, i))


def check_sum(group, ranks: list[int], salt: int = 0, size: int = 1000) -> None:
    """An all-reduce over ``group`` gives the sum over the global ``ranks``."""
    tensor = integers(dist.get_rank(), size, f32, salt)
    dist.all_reduce(tensor, group=group)
    assert_bits(tensor, sum(integers(r, size, f32, salt) for r in ranks), ranks)


def strided(contents: torch.Tensor) -> torch.Tensor:
    """A view with gaps (every second element of a buffer) that holds ``contents``."""
    buffer = blank((*contents.shape, 2), contents.dtype)
    view = buffer[..., 0]
    view.copy_(contents)
    return view


def transposed(contents: torch.Tensor) -> torch.Tensor:
    """A dense but not contiguous view that holds a two-dimensional ``contents``."""
    view = torch.empty(contents.shape[::-1], dtype=contents.dtype).t()
    view.copy_(contents)
    return view


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters of `model`, one after the other."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def pids() -> list[int]:
    """The processes of all ranks, by rank."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, os.getpid())
    return everybody
