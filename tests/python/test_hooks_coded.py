"""Hooks that send through codecs: what each of them computes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    SMALL_BUCKETS,
    assert_same_on_all_ranks,
    attached,
    backward,
    net,
    residuals,
    sum_over_ranks,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close


def linear(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(32, 16, bias=False)


def give(ddp: DDP, gradient: torch.Tensor) -> torch.Tensor:
    """A backward whose gradient of the one weight is `gradient` on this rank; returns the mean."""
    ddp.zero_grad()
    (ddp(torch.eye(32)).t() * gradient).sum().backward()
    return ddp.module.weight.grad


def gradient_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 32, generator=generator)


def everybody(value: torch.Tensor) -> list[torch.Tensor]:
    values = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(values, value.contiguous())
    return values


# --- top-k and deep gradient compression ----------------------------------------------------------


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """A mask of the elements with the largest magnitudes."""
    mask = torch.zeros(x.numel(), dtype=torch.bool)
    mask[x.abs().flatten().topk(count).indices] = True
    return mask.view_as(x)


@pytest.mark.parametrize("clip_norm", [None, 6.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.ranks(2, 3)
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


@pytest.mark.parametrize("algorithm", ["sra", "hierarchical"])
@pytest.mark.ranks(4, fresh=True)
def test_momentum_of_what_was_not_delivered_goes_on(algorithm: str) -> None:
    """Nor does it where ranks of a host add up first, and nobody knows whose share was sent."""
    os.environ["Q7X2_HOST_ID"] = str(dist.get_rank() // 2)
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
        assert_close(sum_over_ranks(residuals(hook)["weight"]), owed, step, rtol=1e-5, atol=1e-6)
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


# --- signs ----------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_sign_is_the_majority_of_the_moving_averages() -> None:
    ddp, _ = attached(q7x2.SignSGD(momentum=0.5), linear())
    averages = [torch.zeros(16, 32) for _ in range(3)]
    for step in range(4):
        for rank in range(3):
            averages[rank] = 0.5 * averages[rank] + 0.5 * gradient_of(rank, step)
        expected = sum(a.sign() for a in averages).sign()
        assert_bits(give(ddp, gradient_of(dist.get_rank(), step)), expected, step)


@pytest.mark.ranks(2, 4)
def test_ties_of_signs_are_drawn(world_size: int) -> None:
    """Independent noise has no direction, and who has nothing to say does not vote for one."""
    ddp, _ = attached(q7x2.SignSGD(momentum=0.0), nn.Linear(64, 64, bias=False))

    def reduced(gradient: torch.Tensor) -> torch.Tensor:
        ddp.zero_grad()
        (ddp(torch.eye(64)).t() * gradient).sum().backward()
        return ddp.module.weight.grad

    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    votes = sum(each.sign() for each in everybody(noise))
    assert isinstance(votes, torch.Tensor)
    signs = reduced(noise)
    assert_bits(signs[votes != 0], votes.sign()[votes != 0])
    assert (votes == 0).sum() > 1000
    assert signs[votes == 0].mean().abs() < 0.15  # 1 / 32 at most expected
    alone = -torch.ones(64, 64) if dist.get_rank() == 0 else torch.zeros(64, 64)
    share = reduced(alone).mean()
    # Of two ranks: the other agrees, or there is a tie; of four more often.
    assert {2: -0.6, 4: -0.45}[world_size] < share < {2: -0.4, 4: -0.3}[world_size]
    assert_same_on_all_ranks([signs, ddp.module.weight.grad])


# --- 1-bit Adam -----------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_one_bit_adam_is_adamw_until_it_freezes() -> None:
    ddp, plain = DDP(net()), DDP(net())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-2, weight_decay=0.1, start_iter=4)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(4):
        for model, o in ((ddp, optimizer), (plain, reference)):
            o.zero_grad()
            backward(model, step)
            o.step()
        assert not optimizer.is_frozen
    for p, q in zip(ddp.parameters(), plain.parameters(), strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-6)
    parameters = dict(ddp.module.named_parameters())
    for name, kept in optimizer.hook.state_dict()["shared"]["momentum"].items():
        moment = optimizer.state[parameters[name]]["exp_avg"]
        assert_close(kept, moment, name, rtol=1e-5, atol=1e-7)


@pytest.mark.ranks(2)
def test_one_bit_adam_goes_on_from_the_moments_of_clipped_gradients() -> None:
    """What a user does to gradients before the step is in the momentum that is sent after it."""
    ddp = DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.0, codec="fp32", start_iter=3)
    for step in range(3):
        give(ddp, gradient_of(dist.get_rank(), step))
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        optimizer.step()
    moment = optimizer.state[ddp.module.weight]["exp_avg"].clone()
    assert 0 < moment.norm() < 0.1
    mean = sum(gradient_of(rank, 3) for rank in range(2)) / 2
    close = {"rtol": 1e-5, "atol": 1e-6}
    assert_close(give(ddp, gradient_of(dist.get_rank(), 3)), 0.9 * moment + 0.1 * mean, **close)
    assert optimizer.is_frozen
    optimizer.hook.detach()
    assert not optimizer.is_frozen  # gradients are whole again
    assert_close(give(ddp, gradient_of(dist.get_rank(), 3)), mean, **close)


@pytest.mark.ranks(2, 3)
def test_one_bit_adam_sends_momentum_with_feedback() -> None:
    """m and the residuals are together what went in, and the update divides by frozen moments."""
    ddp = DDP(linear())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=0.1, betas=(0.9, 0.99), start_iter=2)
    me, world_size = dist.get_rank(), dist.get_world_size()
    second = None
    for step in range(6):
        if step >= 2:
            before = optimizer.hook.state_dict()
            owed = sum_over_ranks(before["local"][f"rank_{me}"]["residual"]["weight"])
            m = before["shared"]["momentum"]["weight"].double()
        applied = give(ddp, gradient_of(me, step)).clone()
        if step >= 2:
            assert optimizer.is_frozen
            mean = sum(gradient_of(rank, step) for rank in range(world_size)).double() / world_size
            left = sum_over_ranks(residuals(optimizer.hook)["weight"])
            expected = 0.9 * m + 0.1 * mean + owed
            assert_close(applied.double() + left, expected, step, rtol=1e-5, atol=1e-6)
            assert applied.abs().unique().numel() <= world_size  # a group and an owner: a scale
        weight = ddp.module.weight.detach().clone()
        optimizer.step()
        state = optimizer.state[ddp.module.weight]
        if step >= 2:
            assert_bits(state["exp_avg_sq"], second)
            root = (second / (1 - 0.99**2)).sqrt() + 1e-8
            rate = 0.1 / (1 - 0.9 ** (step + 1))
            assert_close(ddp.module.weight, weight - rate * applied / root, rtol=1e-5, atol=1e-6)
        second = state["exp_avg_sq"].clone()
    assert_same_on_all_ranks([ddp.module.weight])


@pytest.mark.ranks(2)
def test_one_bit_adam_resumes_to_the_bit() -> None:
    def steps(ddp: DDP, optimizer: Any, which: range) -> None:
        for step in which:
            optimizer.zero_grad()
            backward(ddp, step)
            optimizer.step()

    ddp = DDP(net())
    optimizer = q7x2.optim.OneBitAdam(ddp, lr=1e-2, start_iter=2)
    steps(ddp, optimizer, range(5))
    saved = {k: v.clone() for k, v in ddp.state_dict().items()}
    states = optimizer.state_dict(), optimizer.hook.state_dict()
    states = torch.utils._pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, states
    )
    steps(ddp, optimizer, range(5, 8))

    again = DDP(net(seed=3))
    optimizer_again = q7x2.optim.OneBitAdam(again, lr=1e-2, start_iter=2)
    backward(again, 0)  # DDP settles its buckets
    again.load_state_dict(saved)
    optimizer_again.load_state_dict(states[0])
    optimizer_again.hook.load_state_dict(states[1])
    steps(again, optimizer_again, range(5, 8))
    for p, q in zip(again.parameters(), ddp.parameters(), strict=True):
        if p.numel():
            assert_bits(p, q)


@pytest.mark.ranks(2)
def test_one_bit_adam_takes_parameter_groups() -> None:
    """Each with its own rate and decay, before the freeze and after it."""
    ddp, plain = DDP(net()), DDP(net())

    def groups(model: DDP) -> list[dict[str, Any]]:
        vectors = [p for p in model.parameters() if p.dim() < 2]
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        still = {"params": matrices[:1], "lr": 0.0, "weight_decay": 0.0}
        return [{"params": vectors, "weight_decay": 0.0}, {"params": matrices[1:]}, still]

    optimizer = q7x2.optim.OneBitAdam(
        ddp, lr=1e-2, weight_decay=0.1, params=groups(ddp), start_iter=3
    )
    reference = torch.optim.AdamW(groups(plain), lr=1e-2, weight_decay=0.1)
    for step in range(5):
        if step == 3:
            for p, q in zip(ddp.parameters(), plain.parameters(), strict=True):
                assert_close(p, q, rtol=1e-5, atol=1e-6)
        for model, o in ((ddp, optimizer), (plain, reference)):
            o.zero_grad()
            backward(model, step)
            o.step()
    assert optimizer.is_frozen
    assert_bits(ddp.module.convolution.weight, net().convolution.weight)
    moved = (ddp.module.last.weight - net().last.weight).abs().max()
    assert moved > 1e-2
    two = [
        {"params": [p], "betas": (beta, 0.99)}
        for p, beta in zip(ddp.module.last.parameters(), (0.9, 0.8), strict=True)
    ]
    with pytest.raises(ValueError, match="first of betas must be the same in all groups"):
        q7x2.optim.OneBitAdam(ddp, params=two)
    with pytest.raises(ValueError, match="must be parameters of ddp"):
        q7x2.optim.OneBitAdam(DDP(net()), params=[nn.Parameter(torch.zeros(3))])


@pytest.mark.ranks(1)
def test_one_bit_adam_arguments() -> None:
    ddp = DDP(linear())
    for wrong in ({"lr": -1.0}, {"betas": (1.0, 0.9)}, {"start_iter": 0}):
        with pytest.raises(ValueError, match="must"):
            q7x2.optim.OneBitAdam(ddp, **wrong)


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
