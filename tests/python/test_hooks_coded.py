"""A codec for each gradient, composed hooks, and coded hooks over other backends."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import SMALL_BUCKETS, attached, backward, residuals, sum_over_ranks
from torch import nn
from values import assert_bits, assert_close, assert_same_on_all_ranks, everybody

# --- a codec for each gradient --------------------------------------------------------------------


class Given(nn.Module):
    """Its gradients are the tensors that it is called with."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(64, 64) for _ in range(count))

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.layers, gradients, strict=True))


@pytest.mark.ranks(2)
def test_each_gradient_gets_the_codec_it_needs() -> None:
    """By their shape, and not by their size: fewer bytes, and no layer loses more of itself."""
    choices = {"choices": ["int2:g=128", "int6:g=128"], "choose_every": 2}
    sent, lost = [], []
    for options in ({}, choices):
        ddp, hook = attached(q7x2.Quantize("int4:g=128", **options), Given(4))
        for step in range(4):
            if step == 1:  # the first step measures
                before = hook.stats.message_bytes
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            noise = [torch.randn(64, 64, generator=generator) for _ in range(4)]
            # Large and small noise, and large and small numbers of one magnitude.
            gradients = [noise[0], 1e-3 * noise[1], noise[2].sign(), 1e-3 * noise[3].sign()]
            ddp.zero_grad()
            ddp(gradients).backward()
        sent.append(hook.stats.message_bytes - before)
        left = residuals(hook).values()
        lost.append([(r.norm() / g.norm()).item() for r, g in zip(left, gradients, strict=True)])
    choice = hook.state_dict()["shared"]["choice"]
    assert [int(c) for c in choice.values()] == [0, 0, 1, 1]
    assert sent[1] < 0.8 * sent[0]
    assert all(b < 1.2 * a + 1e-3 for a, b in zip(*lost, strict=True)), lost
    for chosen in everybody(torch.stack(list(choice.values()))):
        assert_bits(chosen, torch.stack(list(choice.values())))


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


@pytest.mark.parametrize("on_stock", [False, True])
@pytest.mark.ranks(2)
def test_gradients_that_change_get_the_mild_codec(on_stock: bool) -> None:
    """Each by its own norm over all ranks, at each choice beside the choice before."""
    options = q7x2.Quantize(
        "int8", choices=["int2"], choose_every=2, critical_change=0.5, use_error_feedback=False
    )
    group = dist.new_group(backend="gloo") if on_stock else None
    ddp, hook = attached(options, Given(3), process_group=group)
    # Norms of three gradients, by step. The choices are made after steps 0, 2, 4 and 6.
    norms = [
        (1.0, 1.0, 1.0),
        (1.0, 9.0, 1.0),
        (1.4, 1.6, 0.6),
        (1.0, 1.0, 1.0),
        (1.4, 0.7, 1.0),
        (1.0, 1.0, 1.0),
        (0.0, 0.7, 1.4),
    ]
    expected = {0: (0, 0, 0), 2: (1, 0, 1), 4: (1, 0, 0), 6: (0, 1, 1)}
    sent = []
    for step, of_step in enumerate(norms):
        direction = torch.randn(64, 64, generator=torch.Generator().manual_seed(step))
        direction *= 2 / direction.norm()
        # The first rank has the larger part: one that looked at itself would choose otherwise.
        share = 0.99 if dist.get_rank() == 0 else 0.01
        ddp.zero_grad()
        ddp([direction * norm * share for norm in of_step]).backward()
        chosen = hook.state_dict()["shared"]["choice"]
        if step in expected:
            names = [f"layers.{i}" for i in range(3)]
            assert tuple(int(chosen[name]) for name in names) == expected[step], step
        sent.append(hook.stats.message_bytes)
    assert sent[3] - sent[2] < 0.7 * (sent[1] - sent[0])  # two of three through int2
    state = hook.state_dict()
    _, other = attached(options, Given(3), process_group=group)
    other.load_state_dict(state)
    for kind in ("choice", "choice_norm"):
        for name, value in state["shared"][kind].items():
            assert_bits(other.state_dict()["shared"][kind][name], value, (kind, name))


@pytest.mark.ranks(2)
def test_int4_alone_is_rotated_and_has_small_groups() -> None:
    """Also if there are choices beside it, and where a momentum goes through it."""

    def reduced(hook: Any) -> list[torch.Tensor]:
        ddp, _ = attached(hook)
        for step in range(2):
            ddp.zero_grad()
            backward(ddp, step)
        return [p.grad for p in ddp.parameters() if p.numel()]

    def choice(codec: str) -> Any:
        return q7x2.Quantize(codec, choices=["int2"], choose_every=1)

    best, plain = "hadamard+int4:g=128", "int4:g=512"
    for make in (q7x2.Quantize, q7x2.EF21, choice):
        results = {codec: reduced(make(codec)) for codec in ("int4", best, plain)}
        for short, long in zip(results["int4"], results[best], strict=True):
            assert_bits(short, long)
        pairs = zip(results["int4"], results[plain], strict=True)
        assert any((a != b).any() for a, b in pairs)


@pytest.mark.ranks(2)
def test_a_choice_that_was_skipped_is_made_up_for() -> None:
    """GradScaler commonly skips the first step."""
    ddp, hook = attached(q7x2.Quantize("int4", choices=("int2", "int8"), choose_every=50))
    for step in range(2):
        backward(ddp, step, scale=math.inf if step == 0 else 1.0)
        ddp.zero_grad()
        choice = hook.state_dict()["shared"]["choice"]["layers.0.weight"]
        assert (int(choice) < 0) == (step == 0), step
    assert hook.stats.skipped_steps == 1


@pytest.mark.ranks(2)
def test_choices_are_saved() -> None:
    options = q7x2.Quantize("int4:g=128", choices=["int2:g=128"], choose_every=100)
    ddp, hook = attached(options, **SMALL_BUCKETS)
    backward(ddp, 0)
    state = hook.state_dict()
    _, other = attached(options, **SMALL_BUCKETS)
    other.load_state_dict(state)
    for name, choice in other.state_dict()["shared"]["choice"].items():
        assert_bits(choice, state["shared"]["choice"][name], name)
    state["shared"]["choice"]["norm.weight"] = torch.tensor(7)
    with pytest.raises(q7x2.HookStateError, match=r"expected one of 2 choices for norm\.weight"):
        other.load_state_dict(state)


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
        (lambda: q7x2.Quantize("int4", choose_every=0), "choose_every must be"),
    ):
        with pytest.raises(ValueError, match=because):
            wrong()
    with pytest.raises(ValueError, match="int9"):
        q7x2.TopK(values="int9")


# --- over other backends --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["int8", "onebit", "topk:0.1", "topk:0.1+int4", "bf16+lossless"])
@pytest.mark.parametrize("count", [1, 511, 5000])
@pytest.mark.ranks(2, 3, backend="gloo")
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
        left = sum_over_ranks(residuals(hook)["numbers"])
        put_in = sum_over_ranks(given) / dist.get_world_size()
        applied = ddp.module.numbers.grad
        assert_close(applied.double() + left, owed + put_in, step, rtol=1e-5, atol=1e-6)
        assert_same_on_all_ranks([applied])
        owed = left
