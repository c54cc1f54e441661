"""Where a step of a hook ends, if DDP leaves out buckets that no rank uses; uneven inputs."""

from __future__ import annotations

from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import HOOKS, attached, backward, exact
from idle_cases import Given
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits

SHAPES: list[tuple[int, ...]] = [(24, 16), (16, 16), (32, 8)]
STEPS = 4
# DDP's buckets begin with the parameters that were made last.
UNUSED = {"the last bucket": 0, "one between": 1, "the first bucket": 2}
TAKING_GIVEN = [
    pytest.param(hook, id=name)
    for name, hook in HOOKS.items()
    if name not in ("bursts", "composed", "int4")  # these have names of other models
]


def model(skips: bool) -> DDP:
    return DDP(
        Given(SHAPES, torch.float32),
        find_unused_parameters=True,
        skip_all_reduce_unused_params=skips,
        bucket_cap_mb=0.0005,
    )


def gradients_of(step: int, unused: int) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    given = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [None if i == unused else gradient for i, gradient in enumerate(given)]


Result = tuple[dict[str, Any], list[torch.Tensor | None]]


def trained(hook: Any, skips: bool, options: dict[str, Any]) -> list[Result]:
    """For each bucket that may be unused: the state after some steps without it, and gradients."""
    ddp = model(skips)
    hook_at_work = q7x2.attach(ddp, hook, **options)
    at_first = hook_at_work.state_dict()
    results = []
    for turn, unused in enumerate(UNUSED.values(), 1):
        hook_at_work.load_state_dict(at_first)
        for step in range(STEPS):
            ddp.zero_grad()
            ddp(gradients_of(step, unused)).backward()
            assert hook_at_work.steps == step + 1
        if skips:
            assert hook_at_work.stats.buckets == (len(SHAPES) - 1) * STEPS * turn
        results.append((hook_at_work.state_dict(), [p.grad for p in ddp.parameters()]))
    assert hook_at_work.stats.skipped_steps == 0
    return results


@pytest.mark.parametrize("hook", TAKING_GIVEN)
@pytest.mark.ranks(2)
def test_steps_end_without_the_buckets_that_are_left_out(hook: Any) -> None:
    """As without that option, bit by bit, and the state is at rest after each backward."""
    expected = trained(hook, False, {})
    for options in ({}, exact()):
        for where, one, other in zip(UNUSED, expected, trained(hook, True, options), strict=True):
            assert_same_results(one, other, where)


IN_TURNS = {
    "plain": {},
    "alternating": {"alternating": True},
    "resets": {"reset_every": 3},
    "cold": {"warm_start": False},
    "batched": {"batched": True},
}


@pytest.mark.parametrize("options", IN_TURNS.values(), ids=IN_TURNS)
@pytest.mark.ranks(2)
def test_low_rank_factors_of_a_bucket_wait_while_it_is_left_out(options: dict[str, Any]) -> None:
    """In each step another bucket is left out, none, or the same one for several steps."""
    left_out = [0, 1, 2, 0, 0, 0, None, 1, 2, 1, None, 2, 2]
    hook = q7x2.PowerSGD(rank=2, start_iter=0, **options)
    without, with_it = (model(skips) for skips in (False, True))
    states = [q7x2.attach(ddp, hook) for ddp in (without, with_it)]
    for step, unused in enumerate(left_out):
        for ddp in (without, with_it):
            ddp.zero_grad()
            ddp(gradients_of(step, -1 if unused is None else unused)).backward()
        for i, (p, q) in enumerate(zip(without.parameters(), with_it.parameters(), strict=True)):
            if p.grad is not None and q.grad is not None:
                assert_bits(q.grad, p.grad, (step, i))
    one, other = (state.state_dict()["shared"] for state in states)
    for name, basis in one.get("basis", {}).items():
        assert_bits(other["basis"][name], basis, name)


def assert_same_results(one: Result, other: Result, where: str) -> None:
    (before, expected), (after, reduced) = one, other
    for gradient, target in zip(reduced, expected, strict=True):
        assert (gradient is None) == (target is None), where
        if gradient is not None and target is not None:
            assert_bits(gradient, target, where)
    assert before["step"] == after["step"]
    for key, part in before["local"].items():
        for kind, tensors in part.items():
            for name, tensor in tensors.items():
                if isinstance(tensor, torch.Tensor):
                    assert_bits(after["local"][key][kind][name], tensor, (where, kind, name))


@pytest.mark.ranks(2)
def test_a_step_that_overflows_is_undone_where_the_last_bucket_is_left_out() -> None:
    ddp = model(skips=True)
    hook_at_work = q7x2.attach(ddp, HOOKS["int8"], **exact())
    ddp(gradients_of(0, 0)).backward()
    before = hook_at_work.state_dict()
    given = gradients_of(1, 0)
    assert given[1] is not None
    given[1][0, 0] = torch.inf
    ddp(given).backward()
    assert hook_at_work.stats.skipped_steps == 1
    (kept,) = hook_at_work.state_dict()["local"].values()
    (expected,) = before["local"].values()
    for name, residual in expected["residual"].items():
        assert_bits(kept["residual"][name], residual, name)


@pytest.mark.ranks(2)
def test_pytorchs_names_where_the_last_bucket_is_left_out() -> None:
    ddp = model(skips=True)
    state = q7x2.comm_hooks.PowerSGDState(None, start_powerSGD_iter=1)
    ddp.register_comm_hook(state, q7x2.comm_hooks.powerSGD_hook)
    for step in range(3):
        ddp(gradients_of(step, 0)).backward()
    ddp(gradients_of(3, 0)).backward()
    assert state.stats.steps == 3  # the fourth is over when the next begins
    assert state.stats.skipped_steps == 0


@pytest.mark.ranks(2)
def test_join_with_another_divisor_is_refused() -> None:
    """DDP would divide by the ranks that still have inputs, and a hook does not know them."""
    ddp, _ = attached(q7x2.Allreduce())
    with (
        pytest.raises(ValueError, match="divide_by_initial_world_size=False"),
        ddp.join(divide_by_initial_world_size=False),
    ):
        backward(ddp, 0)
    with ddp.join():
        backward(ddp, 0)
