"""Compressed calls of which a device selects what is sent: that crosses the bus, not tensors.

The bits are those of CPU tensors. In a group's first call of a kind all ranks but the first hear of
the Plan when the call has begun, so tests make calls twice.
"""

from __future__ import annotations

import pytest
import q7x2
import stand_in
import torch
import torch.distributed as dist
from device_codings import SIZE, expect_cpu_bits, normal
from pairs import each_value, nightly
from values import assert_bits

pytestmark = stand_in.needs_accelerator

SELECTIONS = [
    "topk:0.01",
    "topk:0.01:reselect",
    "topk:0.05+int8",
    "sampled:0.02+fp16",
    "threshold:2",
    "randomk:0.1+int4",
    "topk:0.01+lossless",
]
AMONG_NEIGHBOURS = "nm:1:32"  # the stand-in takes ten times as long for it as for the others


@pytest.mark.parametrize(("part", "dtype"), each_value([0, 1], [torch.float32, torch.bfloat16]))
def test_selections_have_the_bits_of_cpu_tensors(
    part: int, dtype: torch.dtype, device_pool, shared: str, device: str
) -> None:
    codecs = SELECTIONS[part::2]
    stand_in.run(device_pool(3), expect_cpu_bits, shared, device, codecs=codecs, dtype=dtype)


@pytest.mark.parametrize("world", [2, nightly(3, "more of the same, with more numbers")])
def test_selections_among_neighbours_have_the_bits_of_cpu_tensors(
    world: int, device_pool, shared: str, device: str
) -> None:
    size = 1511 if world == 2 else SIZE
    codecs = [AMONG_NEIGHBOURS]
    stand_in.run(device_pool(world), expect_cpu_bits, shared, device, codecs=codecs, size=size)


def _with_extremes(device: str) -> None:
    """Numbers of which codecs keep no error, and messages that hold more than what is selected."""
    rank = dist.get_rank()
    for codec in ("topk:0.01", "topk:0.01+fp16", "randomk:0.01", "topk:0.5"):
        for step in range(2):
            x, residual = normal(SIZE, rank), normal(SIZE, rank + 20) / 8
            x[:2000] *= 1000
            x[7] = torch.inf if step == 1 and rank == 1 else 70_000
            y, errors = x.to(device), residual.to(device)
            q7x2.all_reduce(x, codec=codec, residual=residual, step=step, edges="all")
            q7x2.all_reduce(y, codec=codec, residual=errors, step=step, edges="all")
            assert_bits(y.cpu(), x, f"the sum with {codec}, step {step}")
            assert_bits(errors.cpu(), residual, f"the residual with {codec}, step {step}")


def test_selections_of_extremes_have_the_bits_of_cpu_tensors(
    device_pool, shared: str, device: str
) -> None:
    stand_in.run(device_pool(2), _with_extremes, shared, device)


def _counted_selection(codec: str, share: float) -> None:
    x = normal(1 << 16, dist.get_rank()).to("fake")
    residual = torch.zeros(1 << 16, device="fake")
    for step in range(2):
        x.normal_()

        def call(step: int = step) -> None:
            q7x2.all_reduce(x, codec=codec, residual=residual, step=step, edges="all")

        assert sum(stand_in.bytes_of(call)) <= share * 4 * x.nbytes  # with residuals, both ways


@pytest.mark.parametrize(("codec", "share"), [("topk:0.01", 0.025), ("topk:0.01+int8", 0.05)])
def test_what_is_selected_crosses_the_bus(
    codec: str, share: float, device_pool, shared: str
) -> None:
    stand_in.run(device_pool(2), _counted_selection, shared, codec=codec, share=share)
