"""DiLoCo on real ranks: equal replicas, hand-written references, what codecs keep."""

from __future__ import annotations

import itertools

import pytest
import q7x2
import torch
import torch.distributed as dist
from diloco_training import (
    METHODS,
    SPARSE,
    WEIGHTS_ONLY,
    assert_replicas_equal,
    backward,
    flat,
    made,
    skip_codecs,
    train,
    weights,
)
from hook_training import net, sum_over_ranks
from pairs import each_value
from torch import nn
from values import assert_bits, assert_close

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
NEEDS_Q7X2 = pytest.mark.beyond("gloo", "has no codecs")


def after_inner_steps(model: nn.Module, diloco: q7x2.cadence.DiLoCo) -> dict[str, torch.Tensor]:
    """Will hold the weights as the last inner step left them, before anything was shared."""
    local: dict[str, torch.Tensor] = {}
    diloco.inner.register_step_post_hook(lambda *_: local.update(weights(model)))
    return local


# ---- replicas ------------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.ranks(3)
def test_replicas_share_bits_after_each_outer_step(method: str) -> None:
    skip_codecs(method)
    model, diloco = made(**METHODS[method])
    before, outer_steps = weights(model), 0
    for step in range(13):
        train(model, diloco, range(step, step + 1))
        if diloco.stats.outer_steps > outer_steps:
            outer_steps = diloco.stats.outer_steps
            is_whole = METHODS[method].get("fragments", 1) == 1
            assert_replicas_equal(diloco, model if is_whole else None)
    assert outer_steps >= 4
    changed = [n for n, w in diloco.shared_weights.items() if not torch.equal(w, before[n])]
    assert {n for n, w in before.items() if w.numel()} == set(changed)


@pytest.mark.ranks(2)
def test_ranks_start_with_the_weights_of_rank_0() -> None:
    model, diloco = made(net(seed=dist.get_rank()), sync_every=3)
    for name, value in weights(net(seed=0)).items():
        assert_bits(model.get_parameter(name).detach(), value, name)
        assert_bits(diloco.shared_weights[name], value, name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.ranks(2)
def test_half_precision_weights_are_shared_in_float32(dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    diloco = q7x2.cadence.DiLoCo(model, inner, sync_every=2, outer=WEIGHTS_ONLY)
    train(model, diloco, range(4))
    for name, value in diloco.shared_weights.items():
        assert value.dtype == torch.float32
        assert_bits(model.get_parameter(name).detach(), value.to(dtype), name)
    # An outer gradient is a difference between what the dtype holds: 0 if nothing was learnt.
    shared = diloco.shared_weights
    diloco.inner.param_groups[0]["lr"] = 0.0
    train(model, diloco, range(4, 6))
    for name, value in diloco.shared_weights.items():
        assert_bits(value, shared[name], name)


# ---- hand-written references ---------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_equals_a_hand_written_diloco(world_size: int) -> None:
    every = 4
    model, diloco = made(sync_every=every)
    mine = net()
    shared = [p.detach().clone().requires_grad_() for p in mine.parameters()]
    inner = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(3 * every):
        train(model, diloco, range(step, step + 1))
        backward(mine, step, dist.get_rank())
        inner.step()
        inner.zero_grad()
        if (step + 1) % every == 0:
            for s, p in zip(shared, mine.parameters(), strict=True):
                s.grad = s.detach() - p.detach()
                dist.all_reduce(s.grad)
                s.grad /= world_size
            outer.step()
            with torch.no_grad():
                for s, p in zip(shared, mine.parameters(), strict=True):
                    p.copy_(s)
        for name, p in mine.named_parameters():
            assert_close(
                model.get_parameter(name).detach(),
                p.detach(),
                f"{step} {name}",
                rtol=1e-5,
                atol=1e-6,
            )


def halves() -> nn.Module:
    """A model whose two layers are its two fragments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.AvgPool1d(8))


@pytest.mark.ranks(2)
def test_equals_a_hand_written_streaming_diloco(world_size: int) -> None:
    """Fragments leave at steps 4, 8, 12 ... in turn, arrive 3 steps later, and are blended."""
    every, overlap, blend = 8, 3, 0.25
    model, diloco = made(halves(), sync_every=every, fragments=2, overlap=overlap, blend=blend)
    mine = halves()
    inner = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    layers = [list(mine[0].parameters()), list(mine[2].parameters())]
    shared = [[p.detach().clone().requires_grad_() for p in layer] for layer in layers]
    outer = [torch.optim.SGD(s, lr=0.7, momentum=0.9, nesterov=True) for s in shared]
    for step in range(1, 3 * every + overlap + 1):
        train(model, diloco, range(step, step + 1))
        backward(mine, step, dist.get_rank())
        inner.step()
        inner.zero_grad()
        if step > overlap and (step - overlap) % (every // 2) == 0:
            index = ((step - overlap) // (every // 2) - 1) % 2
            outer[index].step()
            with torch.no_grad():
                for s, p in zip(shared[index], layers[index], strict=True):
                    p.copy_(blend * p + (1 - blend) * s)
        if step % (every // 2) == 0:
            index = (step // (every // 2) - 1) % 2
            for s, p in zip(shared[index], layers[index], strict=True):
                s.grad = s.detach() - p.detach()
                dist.all_reduce(s.grad)
                s.grad /= world_size
        for name, p in mine.named_parameters():
            assert_close(
                model.get_parameter(name).detach(),
                p.detach(),
                f"{step} {name}",
                rtol=1e-4,
                atol=1e-6,
            )
    assert diloco.stats.outer_steps == 6


@pytest.mark.parametrize("codec", [None, "int4"])
@pytest.mark.ranks(2)
def test_overlap_changes_when_it_is_waited_for_and_nothing_else(codec: str | None) -> None:
    """The same schedule with messages that are waited for at once: the same bits."""
    if codec and dist.get_backend() == "gloo":
        pytest.skip("gloo has no codecs")
    options = {"sync_every": 6, "fragments": 2, "overlap": 2, "codec": codec}
    runs = []
    for waits in (False, True):
        model, diloco = made(**options)
        for step in range(15):
            train(model, diloco, range(step, step + 1))
            if waits:
                diloco.state_dict()
        runs.append((weights(model), diloco.shared_weights, diloco.residuals))
    for late, at_once in zip(*runs, strict=True):
        for name, value in late.items():
            assert_bits(value, at_once[name], name)


# ---- compression ---------------------------------------------------------------------------------


@NEEDS_Q7X2
@pytest.mark.parametrize(
    ("codec", "decay"), each_value(["int8", "hadamard+int2", SPARSE], [1.0, 0.5])
)
@pytest.mark.ranks(3)
def test_what_is_sent_and_what_is_kept_are_the_signal(
    codec: str, decay: float, world_size: int
) -> None:
    """With an outer step that subtracts the mean, n times what it subtracts is what was sent."""
    model, diloco = made(
        sync_every=2,
        outer=WEIGHTS_ONLY,
        codec=codec,
        residual_decay=decay,
        full_precision=["norm.*"],
    )
    local = after_inner_steps(model, diloco)
    for step in range(0, 8, 2):
        shared, kept = diloco.shared_weights, diloco.residuals
        train(model, diloco, range(step, step + 2))
        names = list(local)
        signal = flat(shared[name] - local[name] for name in names)
        sent = flat(shared[name] - diloco.shared_weights[name] for name in names) * world_size
        before, after = (
            flat(residuals.get(name, torch.zeros_like(local[name])) for name in names)
            for residuals in (kept, diloco.residuals)
        )
        given = sum_over_ranks(signal + decay * before)
        both = sent.double() + sum_over_ranks(after)
        assert_close(both.float(), given.float(), str(step), rtol=1e-3, atol=1e-5)
    assert not {name for name in diloco.residuals if name.startswith("norm.")}
    assert any(residual.any() for residual in diloco.residuals.values())


def lost(values: str, numbers: torch.Tensor) -> float:
    """Of the energy of what ``topk`` selects, the share that these values lose."""

    def kept(codec_name: str) -> torch.Tensor:
        codec = q7x2.Codec(codec_name)
        blocks = -(-numbers.numel() // 65536)
        messages = torch.empty(blocks * codec.max_bytes(65536), dtype=torch.uint8)
        out = torch.empty_like(numbers)
        codec.decode(messages, codec.encode(numbers, messages), out)
        return out

    selected = kept("topk:0.02")
    return float((kept(f"topk:0.02+{values}") - selected).norm() / selected.norm()) ** 2


def test_two_bits_of_selected_numbers_need_small_groups_or_a_rotation() -> None:
    torch.manual_seed(0)
    normal, heavy = torch.randn(1 << 17), torch.distributions.StudentT(3.0).sample((1 << 17,))
    for numbers in (normal, heavy):
        assert lost("hadamard+int2:g=128", numbers) < 0.485**2  # the bound of docs/codecs.md
    assert lost("int2", heavy) > 0.5
    assert lost("int2:minmax:g=512", heavy) > 0.5
    assert lost("int2:minmax:g=64", normal) < 0.5 * lost("hadamard+int2:g=128", normal)


def encoded_bytes(codec_name: str, signal: torch.Tensor) -> int:
    """Of the messages that the codec makes of a vector."""
    codec = q7x2.Codec(codec_name)
    block = 65536
    blocks = -(-signal.numel() // block)
    messages = torch.empty(blocks * codec.max_bytes(block), dtype=torch.uint8)
    return sum(codec.encode(signal.clone(), messages, torch.zeros_like(signal), block=block))


@NEEDS_Q7X2
@pytest.mark.ranks(2)
def test_sparse_messages_are_a_hundred_times_smaller_than_float32() -> None:
    """Of the outer gradient of 30 steps. With ``reselect`` the sum is as short as a contribution,
    so the ratio of messages is that of an all-reduce."""
    every = 30
    model, diloco = made(sync_every=every, outer=WEIGHTS_ONLY, codec=SPARSE)
    shared, local = diloco.shared_weights, after_inner_steps(model, diloco)
    train(model, diloco, range(every))
    signal = torch.cat([(shared[name] - value).flatten() for name, value in local.items()])
    assert 4 * signal.numel() >= 100 * encoded_bytes(SPARSE, signal)
    assert diloco.stats.signal_bytes == 4 * signal.numel()
    assert diloco.stats.message_bytes * 100 <= diloco.stats.signal_bytes
    assert diloco.stats.message_bytes == pytest.approx(encoded_bytes(SPARSE, signal), rel=0.2)


# ---- the rest ------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_an_outer_gradient_that_is_not_finite_is_not_applied() -> None:
    model = net()
    diloco = q7x2.cadence.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.05), sync_every=2)
    train(model, diloco, range(3))
    before = diloco.shared_weights
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.last.weight[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="Inf or NaN on some rank"):
        train(model, diloco, range(3, 4))
    for name, value in diloco.shared_weights.items():
        assert_bits(value, before[name], name)
    assert diloco.stats.rolled_back == 1
    diloco.zero_grad()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(before[name])
    train(model, diloco, range(4, 5))  # what was due is done now
    assert diloco.stats.outer_steps == 2
    assert_replicas_equal(diloco)


def test_fragments_are_balanced_and_none_is_empty() -> None:
    from q7x2.cadence.diloco_fragment import split

    for sizes in itertools.product([0, 1, 7, 100], repeat=5):
        parameters = [(str(i), torch.empty(size)) for i, size in enumerate(sizes)]
        for count in range(1, 6):
            parts = split(parameters, count)
            assert [each for part in parts for each in part] == parameters
            assert all(parts)
            largest = max(sum(p.numel() for _, p in part) for part in parts)
            assert largest <= sum(sizes) / count + max(sizes)


# ---- the end -------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_the_end_applies_the_outer_gradients_on_their_way() -> None:
    model, diloco = made(sync_every=4, overlap=2, blend=0.0)
    with diloco:
        train(model, diloco, range(5))
        assert diloco.stats.outer_steps == 0
    assert diloco.stats.outer_steps == 1
    assert_replicas_equal(diloco, model)
    diloco.flush()  # nothing is on its way
    train(model, diloco, range(5, 10))  # a flush is no end: the next one leaves at step 8
    assert diloco.stats.outer_steps == 2
