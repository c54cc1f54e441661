"""What a codec sees of a gradient, composed hooks, and coded hooks over other backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import attached, backward, residuals, sum_over_ranks
from torch import nn
from values import FEW, assert_bits, assert_close, assert_same_on_all_ranks

# --- what a codec sees ----------------------------------------------------------------------------


class Pair(nn.Module):
    """Two matrices that share a group of a codec, and a vector; gradients as given."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.zeros(5, 20))
        self.large = nn.Parameter(torch.zeros(5, 20))
        self.vector = nn.Parameter(torch.zeros(10))

    def forward(
        self, small: torch.Tensor, large: torch.Tensor, vector: torch.Tensor
    ) -> torch.Tensor:
        return (
            (self.small * small).sum() + (self.large * large).sum() + (self.vector * vector).sum()
        )


@pytest.mark.parametrize(
    "options", [q7x2.Quantize("int4:g=128"), q7x2.TopK(0.1, start_iter=0)], ids=["int4", "topk"]
)
@pytest.mark.ranks(2)
def test_small_gradients_do_not_starve_beside_large_ones(options: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    small, large = 1e-4 * torch.randn(5, 20, generator=generator), torch.randn(5, 20)
    vector = torch.randn(10, generator=generator)
    sent = {}
    for per_parameter in (True, False):
        ddp, hook = attached(dataclasses.replace(options, per_parameter=per_parameter), Pair())
        ddp(small, large, vector).backward()
        sent[per_parameter] = bool(ddp.module.small.grad.any())
        assert_bits(ddp.module.vector.grad, vector)  # it travels whole
        assert "vector" not in residuals(hook)
    assert sent == {True: True, False: False}


@pytest.mark.ranks(2)
def test_int4_means_the_same_as_in_a_collective() -> None:
    """Also where a momentum goes through it."""

    def reduced(hook: Any) -> list[torch.Tensor]:
        ddp, _ = attached(hook)
        for step in range(2):
            ddp.zero_grad()
            backward(ddp, step)
        return [p.grad for p in ddp.parameters() if p.numel()]

    whole, rotated = "int4:g=512", "hadamard+int4:g=128"
    for make in (q7x2.Quantize, q7x2.EF21):
        results = {codec: reduced(make(codec)) for codec in ("int4", whole, rotated)}
        for short, long in zip(results["int4"], results[whole], strict=True):
            assert_bits(short, long)
        pairs = zip(results["int4"], results[rotated], strict=True)
        assert any((a != b).any() for a, b in pairs)


# --- several hooks --------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_composed_hooks_do_what_each_does_alone() -> None:
    """Buckets are divided, so codecs and factors see what they see where the others are whole."""
    low = q7x2.PowerSGD(rank=2, start_iter=0)
    alone, _ = attached(
        dataclasses.replace(low, full_precision=["norm.*", "last.*", "conv*", "extra.*"])
    )
    top = q7x2.TopK(0.1, start_iter=0)
    both, hook = attached(q7x2.Compose({"layers.*": low, "extra.*": top, "*": low}))
    for step in range(3):
        for ddp in (alone, both):
            ddp.zero_grad()
            backward(ddp, step)
        pairs = zip(both.module.named_parameters(), alone.module.parameters(), strict=True)
        for (name, p), q in pairs:
            if name.startswith("layers."):
                assert_close(p.grad, q.grad, (step, name), rtol=1e-5, atol=1e-6)
    (local,) = hook.state_dict()["local"].values()
    assert {name.split(".")[0] for name in local["0.residual"]} == {"layers"}
    assert set(local["1.residual"]) == {"extra.weight"}
    assert set(local["2.residual"]) == {"last.weight"}


@pytest.mark.ranks(1)
def test_compose_needs_a_hook_for_every_parameter() -> None:
    with pytest.raises(ValueError, match=r"no pattern matches parameter 'nothing'"):
        attached(q7x2.Compose({"conv*": q7x2.TopK(0.1, start_iter=0)}))
    with pytest.raises(ValueError, match="Compose: no parameter's name matches 'embedding"):
        attached(q7x2.Compose({"embedding": q7x2.TopK(0.1, start_iter=0), "*": q7x2.Allreduce()}))


@pytest.mark.ranks(1)
def test_wrong_arguments() -> None:
    for wrong, because in (
        (lambda: q7x2.TopK(0.0), "ratio must be"),
        (lambda: q7x2.TopK(selection="fuzzy"), "selection must be 'exact'"),
        (lambda: q7x2.TopK(momentum=1.0), "momentum must be"),
        (lambda: q7x2.TopK(clip_norm=0.0), "clip_norm must be"),
        (lambda: q7x2.TopK(start_iter=-1), "start_iter must not be negative"),
        (lambda: q7x2.SignSGD(momentum=-0.1), "momentum must be"),
    ):
        with pytest.raises(ValueError, match=because):
            wrong()
    with pytest.raises(ValueError, match="int9"):
        q7x2.TopK(values="int9")


# --- over other backends --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["int8", "onebit", "topk:0.1", "topk:0.1+int4", "bf16+lossless"])
@pytest.mark.parametrize("count", [1, 511, 5000])
@pytest.mark.ranks(*FEW, backend="gloo")
def test_stock_collectives_sum_as_ours_do(codec: str, count: int) -> None:
    """Over Gloo, what is applied and what is left is all that went in."""

    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = nn.Parameter(torch.zeros(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.numbers * x).sum()

    ddp, hook = attached(q7x2.Quantize(codec, compress_vectors=True), Numbers())
    owed = torch.zeros(count).double()
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        given = torch.randn(count, generator=generator)
        ddp.zero_grad()
        ddp(given).backward()
        none = torch.zeros(count)  # a short one is sent whole
        left = sum_over_ranks(residuals(hook).get("numbers", none))
        put_in = sum_over_ranks(given) / dist.get_world_size()
        applied = ddp.module.numbers.grad
        assert_close(applied.double() + left, owed + put_in, step, rtol=1e-5, atol=1e-6)
        assert_same_on_all_ranks([applied])
        owed = left
