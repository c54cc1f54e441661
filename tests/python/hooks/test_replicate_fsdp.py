"""Hooks on FSDP2's ``replicate()``: what FSDP2 does with gradients before and after the hook."""

from __future__ import annotations

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import Net, backward, local, net
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_on_fsdp
from values import assert_close
from whole_models import (
    STEADY,
    assert_same,
    gradients,
    made,
    mesh,
    start,
)


@pytest.mark.ranks(2, env=STEADY)
def test_unused_parameters_of_replicate_on_fsdp() -> None:
    model, _ = made("fsdp", start("fsdp"))
    q7x2.attach(model, q7x2.Allreduce())
    with pytest.raises(RuntimeError, match=r"set_reduce_scatter_unused_params\(True\)"):
        backward(model, 0, extra=False)
    model, _ = made("fsdp", start("fsdp"))
    q7x2.attach(model, q7x2.Allreduce())
    model.set_reduce_scatter_unused_params(True)
    backward(model, 0, extra=dist.get_rank() == 1)
    reference = net()
    backward(reference, 0, rank=1)
    found = local(model.extra.weight.grad)
    assert_close(found, reference.extra.weight.grad / 2, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(2, env=STEADY)
def test_precisions_of_replicate_on_fsdp() -> None:
    """Gradients that FSDP converts, and those that it divides by a factor of the user's."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    for reduced in (torch.bfloat16, torch.float16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        expected = replicate_on_fsdp(start("fsdp"), mesh=mesh(), mp_policy=policy)
        model = replicate_on_fsdp(start("fsdp"), mesh=mesh(), mp_policy=policy)
        q7x2.attach(model, q7x2.Allreduce())
        for each in (expected, model):
            backward(each, 0)
            backward(each, 1)
        for name, gradient in gradients(expected).items():
            assert_close(gradients(model)[name], gradient, name, rtol=2e-2, atol=1e-3)
    expected = replicate_on_fsdp(start("fsdp"), mesh=mesh())
    model = replicate_on_fsdp(start("fsdp"), mesh=mesh())
    q7x2.attach(model, q7x2.Allreduce())
    for each in (expected, model):
        each.set_gradient_divide_factor(1.0)
        backward(each, 0)
    for name, gradient in gradients(expected).items():
        assert_close(gradients(model)[name], gradient, name, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2, env=STEADY)
def test_modules_that_replicate_on_their_own() -> None:
    """Each is a bucket of its own; the means are dense ones, and `detach` gives FSDP its own."""

    def nested() -> Net:
        model = start("fsdp")
        one = mesh()
        for layer in model.layers:
            replicate_on_fsdp(layer, mesh=one)
        return replicate_on_fsdp(model, mesh=one)

    expected, model = nested(), nested()
    hook = q7x2.attach(model, q7x2.Allreduce())
    for step in range(2):
        for each in (expected, model):
            each.zero_grad()
            backward(each, step)
        assert_same(gradients(model), gradients(expected), step)
        assert hook.steps == step + 1
    assert hook.stats.buckets == 10
    hook.detach()
    for each in (expected, model):
        each.zero_grad()
        backward(each, 3)
    assert_same(gradients(model), gradients(expected), "detached")
    again = q7x2.attach(model, q7x2.Quantize("int8"))
    backward(model, 4)
    assert again.steps == 1
