"""When a hook may be attached: once per model, also after some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import SMALL_BUCKETS, net, sgd, train
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits


def attach_int8(ddp: DDP) -> Any:
    return q7x2.attach(ddp, q7x2.Quantize("int8"))


def attach_overlap(ddp: DDP) -> Any:
    return q7x2.overlap.attach(ddp, sgd(ddp))


def attach_one_bit_adam(ddp: DDP) -> Any:
    return q7x2.optim.OneBitAdam(ddp, lr=0.1)


def attach_torchs(ddp: DDP) -> Any:
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)  # type: ignore[no-untyped-call]


def rebind(ddp: DDP) -> Any:
    attach_int8(DDP(ddp.module)).rebind(ddp)


FIRST = [
    (attach_int8, "q7x2.Quantize"),
    (attach_overlap, "q7x2.overlap.OverlapOptions"),
    (attach_torchs, "fp16_compress_hook"),
    (attach_one_bit_adam, "q7x2."),
]


@pytest.mark.parametrize(("first", "name"), FIRST, ids=[each[0].__name__ for each in FIRST])
@pytest.mark.ranks(1)
def test_a_second_hook_is_refused_with_what_to_do(first: Callable[[DDP], Any], name: str) -> None:
    ddp = DDP(torch.nn.Linear(8, 8))
    first(ddp)
    groups = len(dist.distributed_c10d._world.pg_map)
    for second in (attach_int8, attach_overlap, attach_one_bit_adam):
        with pytest.raises(
            RuntimeError, match=rf"has the hook .*{name}.* already.*make a new"
        ) as e:
            second(ddp)
        assert "q7x2.Compose" in str(e.value)
    assert len(dist.distributed_c10d._world.pg_map) == groups, "groups were made for nothing"
    with pytest.raises(RuntimeError, match="make a new DistributedDataParallel"):
        rebind(ddp)


@pytest.mark.ranks(1)
def test_a_hook_that_was_detached_stays_registered() -> None:
    ddp = DDP(torch.nn.Linear(8, 8))
    attach_int8(ddp).detach()
    with pytest.raises(RuntimeError, match="even if it is detached"):
        attach_int8(ddp)
    hook = attach_int8(DDP(ddp.module))  # which is what the message says
    assert hook.steps == 0
    with pytest.raises(AttributeError, match="Attached has no attribute 'step': use 'steps'"):
        _ = hook.step


def train_with(at: int, attach: Callable[[DDP], Any], is_late: bool, **options: Any) -> Any:
    """Parameters after six steps of which those from ``at`` on have a hook.

    Args:
        is_late: The hook comes to the model of the first steps, and not to a new one.
    """
    ddp = DDP(net(), **options, **SMALL_BUCKETS)
    optimizer = sgd(ddp)
    train(ddp, optimizer, range(at))
    if not is_late:
        ddp = DDP(ddp.module, **options, **SMALL_BUCKETS)
    hook = attach(ddp)
    train(ddp, optimizer, range(at, 6))
    assert hook.steps == 6 - at
    return dict(ddp.module.named_parameters())


@pytest.mark.parametrize(
    "hook",
    [q7x2.Quantize("int8"), q7x2.PowerSGD(rank=2, start_iter=1), q7x2.TopK(0.1, start_iter=0)],
    ids=lambda hook: type(hook).__name__,
)
@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["plain", "static"])
@pytest.mark.parametrize("at", [1, 3])  # before DDP makes its buckets anew, and after that
@pytest.mark.ranks(2)
def test_a_hook_that_is_attached_after_some_steps(
    at: int, options: dict[str, Any], hook: Any
) -> None:
    late = train_with(at, lambda ddp: q7x2.attach(ddp, hook), is_late=True, **options)
    fresh = train_with(at, lambda ddp: q7x2.attach(ddp, hook), is_late=False, **options)
    for name, p in late.items():
        assert_bits(p, fresh[name], name)


@pytest.mark.ranks(2)
def test_an_overlap_that_is_attached_after_some_steps() -> None:
    plain, late = DDP(net()), DDP(net())
    train(plain, sgd(plain), range(12))
    optimizer = sgd(late)
    train(late, optimizer, range(2))
    hook = q7x2.overlap.attach(late, optimizer)
    train(late, optimizer, range(2, 12))
    hook.flush()
    assert hook.stats.steps > 0
    for (name, one), other in zip(plain.named_parameters(), late.parameters(), strict=True):
        assert_bits(other, one, name)
