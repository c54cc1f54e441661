"""An argument of a wrong kind raises an error that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist

WRONG: Any = 3
A_GROUP = r"group must be a torch\.distributed\.ProcessGroup, got 3"


OF_GROUPS: tuple[Callable[[], object], ...] = (
    lambda: q7x2.describe(WRONG),
    lambda: q7x2.reconfigure("u", [], group=WRONG),
    lambda: q7x2.reconfigure_handle(group=WRONG),
    lambda: q7x2.reconfigure_handles(WRONG),
    lambda: q7x2.all_reduce(torch.ones(2), codec="int8", group=WRONG),
    lambda: q7x2.monitored_barrier(WRONG),
    lambda: q7x2.fabric.of_group(WRONG),
    lambda: q7x2.tune(WRONG),
    lambda: q7x2.plan.plan_history(WRONG),
    lambda: q7x2.cadence.MicroBatches(4, group=WRONG),
)


@pytest.mark.ranks(1)
def test_a_group_that_is_none_is_refused() -> None:
    for call in OF_GROUPS:
        with pytest.raises(TypeError, match=A_GROUP):
            call()


@pytest.mark.ranks(2)
def test_a_group_of_other_ranks_is_refused() -> None:
    others = dist.new_group([0])
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="this process is not in the group"):
            q7x2.describe(others)


@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [
        (lambda: q7x2.reconfigure("u", WRONG), TypeError, "handles must be a sequence or a set"),
        (lambda: q7x2.reconfigure("u", "handle"), TypeError, "handles must be a sequence or a set"),
        (lambda: q7x2.embedding.clip_grad_norm_(WRONG, 1.0), TypeError, "model must be a module"),
        (
            lambda: q7x2.optim.OneBitAdam(WRONG),
            TypeError,
            "OneBitAdam needs a Distributed.*, got int",
        ),
        (
            lambda: q7x2.optim.DistributedLion([WRONG]),
            TypeError,
            "DistributedLion needs a Distributed.*, got list",
        ),
        (lambda: q7x2.policy.plot_policy(WRONG), TypeError, "policy must be a q7x2.policy.Policy"),
        (lambda: q7x2.late.GradientCode(4, WRONG + 2), ValueError, "copies must be at most 4"),
        (
            lambda: q7x2.comm_hooks.powerSGD_hook(WRONG, WRONG),
            TypeError,
            "state must be a PowerSGDState",
        ),
        (
            lambda: q7x2.comm_hooks.batched_powerSGD_hook(WRONG, WRONG),
            TypeError,
            "state must be a PowerSGDState",
        ),
        (
            lambda: q7x2.comm_hooks.post_localSGD_hook(WRONG, WRONG),
            TypeError,
            "state must be a PostLocalSGDState",
        ),
    ],
)
def test_other_arguments_are_refused(
    call: Callable[[], object], kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        call()


@pytest.mark.ranks(1)
def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="output: expected a tensor or a list of them, got 3"):
        q7x2.reduce_scatter_tensor(WRONG, torch.ones(2), codec="int8")


def test_a_file_may_be_named_by_a_text(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot read the fabric in .*nothing\.json: No such"):
        q7x2.fabric.read(f"{tmp_path}/nothing.json")
