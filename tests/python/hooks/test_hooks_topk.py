"""Top-k hooks: deep gradient compression, warm-up, rounded values, clipping, momentum."""

from __future__ import annotations

import json
import math
import os

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import attached, give, gradient_of, linear, residuals, sum_over_ranks
from values import FEW, assert_close


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """A mask of the elements with the largest magnitudes."""
    mask = torch.zeros(x.numel(), dtype=torch.bool)
    mask[x.abs().flatten().topk(count).indices] = True
    return mask.view_as(x)


@pytest.mark.parametrize("clip_norm", [None, 6.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.ranks(*FEW)
def test_top_k_is_deep_gradient_compression(momentum: float, clip_norm: float | None) -> None:
    """Algorithm 4 of Lin et al., all ranks' parts of it computed on each."""
    world_size = dist.get_world_size()
    options = q7x2.TopK(0.1, momentum=momentum, clip_norm=clip_norm, start_iter=0)
    ddp, hook = attached(options, linear())
    velocity = [torch.zeros(16, 32) for _ in range(world_size)]
    pending = [torch.zeros(16, 32) for _ in range(world_size)]
    for step in range(5):
        expected = torch.zeros(16, 32)
        for rank in range(world_size):
            g = gradient_of(rank, step)
            if clip_norm is not None:
                g = g * min(1.0, clip_norm / g.norm())
            velocity[rank] = momentum * velocity[rank] + g / world_size
            pending[rank] = pending[rank] + velocity[rank]
            sent = largest(pending[rank], math.ceil(0.1 * 512))
            expected += pending[rank].where(sent, torch.zeros(()))
            for kept in (velocity[rank], pending[rank]):
                kept[sent] = 0
        applied = give(ddp, gradient_of(dist.get_rank(), step))
        assert_close(applied, expected, step, rtol=1e-5, atol=1e-6)
        assert_close(residuals(hook)["weight"], pending[dist.get_rank()], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("edges", ["host", "slow", "all"])
@pytest.mark.ranks(2)
def test_edges_decide_what_is_lost(edges: str) -> None:
    """Both ranks share a host: with "host" nothing is compressed, with "all" everything."""
    ddp, hook = attached(q7x2.Quantize("int2", edges=edges), linear())
    expected = sum_over_ranks(gradient_of(dist.get_rank(), 0) / 2)
    applied = give(ddp, gradient_of(dist.get_rank(), 0))
    if edges != "slow":
        lost = (applied - expected).norm() / expected.norm()
        assert lost < 1e-6 if edges == "host" else lost > 1e-3
    owed = sum_over_ranks(residuals(hook)["weight"])
    assert_close(applied + owed, expected, edges, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(4, fresh=True)
def test_momentum_of_what_was_not_delivered_goes_on() -> None:
    """Nor does it where ranks of a host add up first, and nobody knows whose share was sent."""
    os.environ["Q7X2_HOST_ID"] = str(dist.get_rank() // 2)
    for algorithm in ("sra", "hierarchical"):
        check_momentum(algorithm)


def check_momentum(algorithm: str) -> None:
    group = dist.new_group(pg_options=q7x2.Options(algorithms=algorithm))
    fabric = json.loads(group._get_backend(torch.device("cpu")).fabric_json)
    assert fabric["ranks"] == [0, 0, 1, 1]
    options = q7x2.TopK(0.1, momentum=0.9, start_iter=0)
    ddp, hook = attached(options, linear(), process_group=group)
    velocity = torch.zeros(16, 32)
    owed = torch.zeros(16, 32).double()
    for step in range(5):
        gradient = gradient_of(dist.get_rank(), step)
        velocity = 0.9 * velocity + gradient / 4
        owed += sum_over_ranks(velocity)
        applied = give(ddp, gradient)
        owed -= applied
        assert_close(
            sum_over_ranks(residuals(hook)["weight"]), owed, (algorithm, step), rtol=1e-5, atol=1e-6
        )
        (local,) = hook.state_dict()["local"].values()
        kept = local["momentum"]["weight"]
        ends = kept == 0
        assert ends.sum() >= math.ceil(0.1 * 512)
        assert (applied == 0).float().mean() > 0.3, step
        assert not ends[applied == 0].any(), step
        assert_close(kept[~ends], velocity[~ends], step, rtol=1e-5, atol=1e-6)
        velocity = kept.clone()
    dist.destroy_process_group(group)


def test_sparsity_warms_up() -> None:
    hook = q7x2.TopK(0.001, start_iter=400)
    assert hook.stages() == [
        (0, "topk:0.251189"),
        (100, "topk:0.0630957"),
        (200, "topk:0.0158489"),
        (300, "topk:0.00398107"),
        (400, "topk:0.001"),
    ]
    assert q7x2.TopK(0.01, values="int8", selection="sampled", start_iter=0).stages() == [
        (0, "sampled:0.01+int8")
    ]


@pytest.mark.ranks(2)
def test_the_warm_up_sends_less_at_each_stage() -> None:
    ddp, _ = attached(q7x2.TopK(0.01, start_iter=3, warmup_stages=3), linear())
    shares = []
    for step in range(4):
        applied = give(ddp, gradient_of(0, step))
        shares.append((applied != 0).float().mean().item())
    expected = [0.01 ** (i / 4) for i in (1, 2, 3, 4)]
    for share, ratio in zip(shares, expected, strict=True):
        assert ratio <= share <= 2 * ratio + 2 / 512


@pytest.mark.parametrize("values", ["int8", "fp16"])
@pytest.mark.ranks(2)
def test_rounded_values_mask_only_what_was_sent(values: str) -> None:
    """An owner's residual takes up the rounding of sums too, of elements that it did not send."""
    ddp, hook = attached(q7x2.TopK(0.05, values=values, momentum=0.9, start_iter=0), linear())
    velocity, owed, masked_wrongly, kept_wrongly = torch.zeros(16, 32), torch.zeros(16, 32), 0, 0
    for step in range(4):
        gradient = gradient_of(dist.get_rank(), step)
        give(ddp, gradient)
        velocity = 0.9 * velocity + gradient / 2
        sent = largest(owed + velocity, math.ceil(0.05 * 512))
        (local,) = hook.state_dict()["local"].values()
        masked = (local["momentum"]["weight"] == 0) & (velocity != 0)
        masked_wrongly += int((masked & ~sent).sum())
        kept_wrongly += int((~masked & sent).sum())
        velocity, owed = local["momentum"]["weight"], local["residual"]["weight"]
    assert masked_wrongly <= 2
    assert kept_wrongly == 0


@pytest.mark.ranks(2)
def test_gradients_are_clipped_in_full_precision_too() -> None:
    ddp, _ = attached(q7x2.TopK(1.0, clip_norm=0.01, start_iter=2, warmup_stages=0), linear())
    for step in range(3):
        assert give(ddp, gradient_of(dist.get_rank(), step)).norm() < 0.0101, step


@pytest.mark.ranks(2)
def test_full_precision_steps_keep_the_momentum() -> None:
    """They are SGD with momentum: the sum of the ranks' velocities."""
    ddp, _ = attached(q7x2.TopK(0.1, momentum=0.5, start_iter=3, warmup_stages=0), linear())
    velocity = torch.zeros(16, 32)
    for step in range(3):
        mean = sum(gradient_of(rank, step) for rank in range(2)) / 2
        velocity = 0.5 * velocity + mean
        applied = give(ddp, gradient_of(dist.get_rank(), step))
        assert_close(applied, velocity, step, rtol=1e-5, atol=1e-6)
