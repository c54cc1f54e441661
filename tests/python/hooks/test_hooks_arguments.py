"""Wrong arguments of hooks, and ranks that attach different ones: refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import backward, net
from q7x2.hooks.runner import make_runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@pytest.mark.ranks(1)
def test_wrong_arguments() -> None:
    ddp = DDP(net())
    with pytest.raises(TypeError, match=r"group=\.\.\., got Net"):
        q7x2.attach(ddp.module, q7x2.PowerSGD())
    with pytest.raises(ValueError, match=r"no parameter.s name matches .layer\.0"):
        q7x2.attach(ddp, q7x2.PowerSGD(full_precision=["layer.0.*"], start_iter=0))
    with pytest.raises(ValueError, match="no parameter's name matches 'attention"):
        q7x2.attach(ddp, q7x2.PowerSGD(rank={"attention": 2}, start_iter=0))
    with pytest.raises(ValueError, match="factors must be"):
        q7x2.PowerSGD(factors="int8")
    with pytest.raises(ValueError, match="rank must not be negative"):
        q7x2.PowerSGD(rank=-1)
    with pytest.raises(ValueError, match="needs warm_start"):
        q7x2.PowerSGD(alternating=True, warm_start=False)
    with pytest.raises(ValueError, match="reset_every must be at least 1, got 0"):
        q7x2.PowerSGD(reset_every=0)
    with pytest.raises(ValueError, match="expected warm_start=True"):
        q7x2.PowerSGD(reset_every=10, warm_start=False)
    with pytest.raises(ValueError, match="burst_steps must be"):
        q7x2.PowerSGD(burst_every=2, burst_steps=2)
    on_gloo = DDP(net(), process_group=dist.new_group(backend="gloo"))
    with pytest.raises(RuntimeError, match="needs a process group of q7x2"):
        q7x2.attach(on_gloo, q7x2.Quantize("sumint8"))
    with pytest.raises(ValueError, match="int9"):
        q7x2.Quantize("int9")
    with pytest.raises(ValueError, match="dtype must be"):
        q7x2.Allreduce(dtype=torch.int8)
    with pytest.raises(ValueError, match="expected rank of at least 1"):
        q7x2.PowerSGD(rank=0, batched=True)
    with pytest.raises(TypeError, match=r"rank must be an int, .* got 2\.5"):
        q7x2.PowerSGD(rank=2.5)  # type: ignore[arg-type]
    for no_hook in (q7x2.PowerSGD, "int8"):
        with pytest.raises(TypeError, match=r"attach needs a hook, such as q7x2\.PowerSGD"):
            q7x2.attach(ddp, no_hook)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"scaler must be a torch\.amp\.GradScaler, got int"):
        q7x2.attach(ddp, q7x2.Allreduce(), scaler=3)
    complex_numbers = DDP(nn.Linear(4, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match="only Allreduce takes"):
        q7x2.attach(complex_numbers, q7x2.PowerSGD())
    q7x2.attach(complex_numbers, q7x2.Allreduce())
    frozen_later = DDP(net())
    frozen_later.module.extra.requires_grad_(False)
    with pytest.raises(ValueError, match="reduces 17 parameters, of which 15 need gradients"):
        q7x2.attach(frozen_later, q7x2.PowerSGD())
    q7x2.attach(ddp, q7x2.Allreduce())


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        (q7x2.PowerSGD(rank=2, alternating=True), q7x2.Quantize("int8")),
        (q7x2.PowerSGD(rank=2), q7x2.PowerSGD(rank=2, random_seed=1)),
        (q7x2.Allreduce(dtype=torch.bfloat16), q7x2.Allreduce(dtype=torch.float16)),
    ],
    ids=["hook", "option", "dtype"],
)
@pytest.mark.ranks(3)
def test_ranks_that_attach_different_hooks_are_told(mine: Any, its: Any) -> None:
    ddp = DDP(net())
    with pytest.raises(ValueError, match=r"rank 0 has .* where rank 2 of the group has ") as error:
        q7x2.attach(ddp, its if dist.get_rank() == 2 else mine)
    assert repr(mine) in str(error.value)
    assert repr(its) in str(error.value)
    q7x2.attach(ddp, mine)
    backward(ddp, 0)


@pytest.mark.ranks(1)
def test_buckets_without_ddp_are_checked() -> None:
    """A wrong call changes nothing: the runner still reduces."""
    named = [("one", torch.zeros(2, 2)), ("two", torch.zeros(3))]
    runner = make_runner(q7x2.Allreduce(), None, named)
    with pytest.raises(ValueError, match="numbers of the 2 parameters, got 2"):
        runner.reduce_bucket(0, [0, 2], torch.ones(7), True)
    for wrong in (torch.ones(6), torch.ones(7, 1), torch.ones(14)[::2]):
        with pytest.raises(ValueError, match="contiguous buffer of one dimension with the 7 elem"):
            runner.reduce_bucket(0, [0, 1], wrong, True)
    assert runner.reduce_bucket(0, [1, 0], torch.ones(7), True).wait().tolist() == [1.0] * 7
    runner.end_reductions()
    assert runner.step == 1
