"""Residuals that follow the learning rate."""

from __future__ import annotations

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import exact, give, gradient_of, linear, residuals
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

RATES = (0.1, 0.2, 0.2, 0.05, 0.0, 0.05, 0.01)


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize(
    "hook",
    [
        q7x2.Quantize("int2:g=32"),
        q7x2.PowerSGD(rank=1, start_iter=0, min_compression_rate=1, factors="fp32"),
    ],
    ids=["codec", "powersgd"],
)
@pytest.mark.ranks(2)
def test_what_is_applied_late_is_applied_at_its_own_rate(hook: object, scaler: bool) -> None:
    """All steps and the residuals at the last rate are together the sum of rate times gradient."""
    ddp = DDP(linear())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    attached = q7x2.attach(ddp, hook, optimizer=optimizer, **(exact() if scaler else {}))
    wanted, applied = torch.zeros(16, 32), torch.zeros(16, 32)
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        if rate == 0:
            continue
        applied += rate * give(ddp, gradient_of(dist.get_rank(), step))
        wanted += rate * sum(gradient_of(rank, step) for rank in range(2)) / 2
        left = residuals(attached)["weight"].clone()
        dist.all_reduce(left)
        assert left.norm() > 0.1
        assert_close(applied + rate * left, wanted, step, rtol=1e-4, atol=1e-5)


@pytest.mark.ranks(2)
def test_the_rate_is_saved_with_the_residuals() -> None:
    def made() -> tuple[DDP, q7x2.hooks.Attached, torch.optim.Optimizer]:
        ddp = DDP(linear())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
        return ddp, q7x2.attach(ddp, q7x2.Quantize("int2:g=32"), optimizer=optimizer), optimizer

    ddp, hook, optimizer = made()
    give(ddp, gradient_of(dist.get_rank(), 0))
    state = hook.state_dict()
    again, hook_again, optimizer_again = made()
    give(again, gradient_of(dist.get_rank(), 1))
    hook_again.load_state_dict(state)
    results = []
    for model, sgd in ((ddp, optimizer), (again, optimizer_again)):
        sgd.param_groups[0]["lr"] = 0.25
        results.append(give(model, gradient_of(dist.get_rank(), 2)))
    assert_bits(*results)


@pytest.mark.ranks(1)
def test_hooks_that_have_no_residuals_of_gradients_refuse() -> None:
    ddp = DDP(linear())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    for hook in (q7x2.Allreduce(), q7x2.SignSGD(), q7x2.EF21(), q7x2.TopK(clip_norm=1.0)):
        with pytest.raises(
            ValueError, match="every rank holds whole and a hook that keeps residuals"
        ):
            q7x2.attach(ddp, hook, optimizer=optimizer)
    with pytest.raises(ValueError, match="keeps residuals of gradients"):
        q7x2.attach(ddp, q7x2.Quantize(use_error_feedback=False), optimizer=optimizer)
