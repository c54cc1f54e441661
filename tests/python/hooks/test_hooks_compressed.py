"""Compressors by name: what there is, what is refused, and the cyclic top-k."""

from __future__ import annotations

import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    attached,
    backward,
    exact,
    give,
    gradient_of,
    linear,
    parameters_of,
    residuals,
    train,
)
from q7x2._core.extension import load
from values import assert_bits, assert_close, assert_same_on_all_ranks

CYCLIC = q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.05})


def test_compressors_describe_themselves() -> None:
    text = q7x2.hooks.Compressed.describe()
    for kind in load().compressor_kinds():
        assert f"{kind.name}: {kind.doc}" in text
        assert kind.doc.endswith(".")
        for field in kind.fields:
            assert field.doc.endswith("."), (kind.name, field.name)
            field.check(field.default)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topk",), "one of codec, low_rank, flat_low_rank, cyclic_top_k, got 'topk'"),
        (("cyclic_top_k", {"ration": 0.1}), "has no option 'ration': expected one of ratio"),
        (("cyclic_top_k", {"ratio": 0}), "ratio must be more than 0, got 0"),
        (("cyclic_top_k", {"ratio": 1.5}), "ratio must be at most 1, got 1.5"),
        (("cyclic_top_k", {"ratio": True}), "ratio must be a number, got True"),
        (("cyclic_top_k", {"ratio": "1 %"}), "ratio must be a number, got '1 %'"),
        (("flat_low_rank", {"rank": 2.0}), "rank must be an int, got 2.0"),
        (("low_rank", {"ranks": [1, "2"]}), "ranks must be a tuple or a list of ints"),
        (("low_rank", {"warm_start": 1}), "warm_start must be True or False, got 1"),
        (("low_rank", {"factor_dtype": "bf16"}), "factor_dtype must be a torch.dtype or None"),
        (("codec", {"stages": ["int8"]}), "stages must be a tuple or a list of pairs"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        q7x2.hooks.Compressed(*arguments)


@pytest.mark.ranks(2)
def test_a_compressor_by_name_is_that_of_its_class() -> None:
    named = q7x2.hooks.Compressed("codec", {"stages": [(0, "int4:g=64")]})
    for hook, same in (
        (q7x2.Quantize("int4:g=64"), named),
        (
            q7x2.PowerSGD(rank=2, factors="fp32", start_iter=0),
            q7x2.hooks.Compressed("low_rank", {"default_rank": 2}),
        ),
    ):
        gradients = []
        for each in (hook, same):
            ddp, _ = attached(each)
            backward(ddp, 0)
            gradients.append([p.grad.clone() for p in ddp.parameters()])
        for one, other in zip(*gradients, strict=True):
            assert_bits(one, other, str(same))


@pytest.mark.parametrize("backend", ["q7x2", "gloo"])
@pytest.mark.ranks(3)
def test_the_ranks_take_turns_to_select(backend: str) -> None:
    """The mean of all ranks arrives where the leader's contributions are largest."""
    group = dist.new_group(backend=backend)
    three = q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 3 / 512})
    ddp, hook = attached(three, linear(), process_group=group)
    kept = [torch.zeros(16, 32) for _ in range(3)]
    for step in range(4):
        for rank in range(3):
            kept[rank] += gradient_of(rank, step) / 3
        places = kept[step % 3].abs().flatten().topk(3).indices
        expected = torch.zeros(16, 32)
        expected.view(-1)[places] = torch.stack(kept).sum(0).view(-1)[places]
        for each in kept:
            each.view(-1)[places] = 0
        mean = give(ddp, gradient_of(dist.get_rank(), step))
        assert_close(mean, expected, (backend, step), rtol=1e-5, atol=1e-7)
    (mine,) = residuals(hook).values()
    assert_close(mine, kept[dist.get_rank()], backend, rtol=1e-5, atol=1e-7)


@pytest.mark.ranks(3, fresh=True)
def test_messages_do_not_grow_with_the_ranks() -> None:
    """Only the leader sends places, and sums have no more elements than messages."""
    pair = dist.new_group([0, 1])
    sizes = []
    for group in (None, pair):
        if group is pair and dist.get_rank() == 2:
            return
        ddp, hook = attached(CYCLIC, process_group=group)
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), range(6))
        matrices = [p for p in ddp.parameters() if p.dim() > 1]
        selected = [math.ceil(0.05 * p.numel()) for p in matrices]
        for p, count in zip(matrices, selected, strict=True):
            assert 0 < (p.grad != 0).sum() <= count
        if group is None:
            assert_same_on_all_ranks(parameters_of(ddp))
        sizes.append(hook.stats.message_bytes)
    led = (2, 3)  # of six steps, by each of three ranks and of two
    assert sizes[0] - sizes[1] == (led[0] - led[1]) * 4 * sum(selected)


@pytest.mark.ranks(2)
def test_all_ranks_skip_a_step_that_is_not_finite_where_nobody_looks() -> None:
    """Rank 1 has Inf at a place that rank 0, which leads, does not select."""
    ddp, hook = attached(CYCLIC, linear(), exact())
    for step in range(2):
        give(ddp, gradient_of(dist.get_rank(), step))
    before = residuals(hook)
    bad = torch.zeros(16, 32)
    bad[0, 0] = math.inf if dist.get_rank() == 1 else 0
    bad[5] = 100
    assert give(ddp, bad).isnan().any()
    assert hook.stats.skipped_steps == 1
    for name, residual in residuals(hook).items():
        assert_bits(residual, before[name], name)
