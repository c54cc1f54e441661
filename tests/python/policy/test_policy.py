"""Policies: what they decide, on what facts, and how a training is rolled back."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hook_training import Given, attached, backward
from policy_training import Script, given, gradients_of, mean_of, step_of, treated
from q7x2.policy.policy import at_level
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close, assert_same_on_all_ranks

HOOKS = {
    "int4": q7x2.Quantize("int4:g=128"),
    "powersgd": q7x2.PowerSGD(rank=4, start_iter=0),
    "cyclic": q7x2.hooks.Compressed("cyclic_top_k", {"ratio": 0.1}),
    "dgc": q7x2.TopK(0.1, momentum=0.5, start_iter=0),
    "composed": q7x2.Compose({"layers.0": q7x2.Quantize("int2"), "*": q7x2.Quantize("int8")}),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.ranks(2)
def test_single_gradients_travel_whole_with_their_residuals(name: str) -> None:
    whole = q7x2.policy.ParameterPolicy(whole=True)
    policy = Script({0: treated(), 1: treated(_1=whole), 2: treated()})
    ddp, hook = given(HOOKS[name], policy)
    step_of(ddp, gradients_of(0))
    before = _sums(residuals(hook))
    others = step_of(ddp, gradients_of(1))
    got = others[1]
    expected = mean_of(1)[1]
    if name != "dgc":  # which sends a momentum
        assert_close(got, expected + before["layers.1"], rtol=1e-5, atol=1e-5)
    assert not residuals(hook)["layers.1"].any()
    assert residuals(hook)["layers.0"].any()
    assert (others[0] - mean_of(1)[0]).any()  # it is compressed still
    step_of(ddp, gradients_of(2))
    assert residuals(hook)["layers.1"].any()  # and so is this one again
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])


@pytest.mark.parametrize("name", ["int4", "powersgd", "cyclic", "composed"])
@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.ranks(2)
def test_skipped_gradients_wait_in_their_residuals(name: str, all_of_them: bool) -> None:
    skip = q7x2.policy.ParameterPolicy(skip=True)
    skipped = treated(_0=skip, _1=skip, _2=skip) if all_of_them else treated(_1=skip)
    ddp, hook = given(HOOKS[name], Script({0: treated(), 1: skipped, 2: treated()}))
    step_of(ddp, gradients_of(0))
    before = _sums(residuals(hook))
    bytes_before = hook.stats.message_bytes
    got = step_of(ddp, gradients_of(1))
    assert not got[1].any()
    after = _sums(residuals(hook))
    assert_close(after["layers.1"], before["layers.1"] + mean_of(1)[1], rtol=1e-5, atol=1e-5)
    if all_of_them:
        assert hook.stats.message_bytes - bytes_before < 200  # facts
    # Nothing is lost: what is applied and what is held back is the mean.
    got = step_of(ddp, gradients_of(2))[1].clone()
    left = _sums(residuals(hook))["layers.1"]
    assert_close(got + left, after["layers.1"] + mean_of(2)[1], rtol=1e-4, atol=1e-4)


def residuals(hook: Any) -> dict[str, torch.Tensor]:
    """Those of all hooks, by name."""
    (local,) = hook.state_dict()["local"].values()
    kinds = [tensors for kind, tensors in local.items() if kind.endswith("residual")]
    return {name: tensor for tensors in kinds for name, tensor in sorted(tensors.items())}


def _sums(local: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sums = {name: tensor.clone() for name, tensor in local.items()}
    for tensor in sums.values():
        dist.all_reduce(tensor)
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.ranks(2)
def test_facts_are_sums_over_the_ranks(dtype: torch.dtype) -> None:
    policy = Script({0: treated(), 2: q7x2.policy.Decision()})
    model = Given(2).to(dtype)
    hook_options = q7x2.Quantize("int4:g=128", start_iter=1)
    ddp, hook = attached(hook_options, model, attach={"policy": policy})
    local = []
    for step in range(3):
        gradients = [g.to(dtype) for g in gradients_of(step, 2)]
        if step == 1:
            gradients[1].zero_()
        local.append(residuals(hook))
        step_of(ddp, gradients)
        mine = [g.float() / 2 for g in gradients]
        squares = torch.tensor(
            [
                [g.square().sum(), residual.float().square().sum()]
                for g, residual in zip(mine, local[-1].values(), strict=True)
            ]
        )
        dist.all_reduce(squares)
        ddp([torch.zeros(64, 64, dtype=dtype)] * 2)  # asks the policy
        facts = policy.facts[-1]
        assert facts.step == step
        assert facts.is_finite
        if step == 2:
            assert not facts.gradients
            continue
        for (name, one), (gradient, residual) in zip(
            facts.gradients.items(), squares.sqrt().tolist(), strict=True
        ):
            assert math.isclose(one.gradient, gradient, rel_tol=2e-2), name
            assert math.isclose(one.residual, residual, rel_tol=2e-2, abs_tol=1e-6), name
        assert [g.uses for g in facts.gradients.values()] == ([2, 2] if step == 0 else [2, 0])


@pytest.mark.ranks(2)
def test_levels_change_from_step_to_step() -> None:
    sent = {}
    for level in ("int2:g=128", "int8:g=128"):
        ddp, hook = given(
            q7x2.Quantize("int4:g=128"),
            Script(
                {
                    0: treated(),
                    1: treated(**{f"_{i}": at_level(level) for i in range(3)}),
                }
            ),
        )
        step_of(ddp, gradients_of(0))
        before = hook.stats.message_bytes
        step_of(ddp, gradients_of(1))
        sent[level] = hook.stats.message_bytes - before
    assert 3 < sent["int8:g=128"] / sent["int2:g=128"] < 4


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.ranks(2)
def test_ranks_of_power_sgd_change_and_keep_the_basis(alternating: bool) -> None:
    """A gradient of rank 2 is found by rank 4, and then known to rank 2 at once."""
    generator = torch.Generator().manual_seed(1)
    low = torch.randn(64, 2, generator=generator) @ torch.randn(2, 64, generator=generator)
    ranks = {0: 4, 6: 2, 8: 3}
    policy = Script({s: treated(_0=q7x2.policy.ParameterPolicy(rank=r)) for s, r in ranks.items()})
    hook_options = q7x2.PowerSGD(
        rank=4, start_iter=0, alternating=alternating, factors="fp32", use_error_feedback=False
    )
    ddp, hook = given(hook_options, policy, 1)
    for step in range(10):
        (got,) = step_of(ddp, [low])
        if step >= 4:
            assert (got - low).norm() < 1e-3 * low.norm(), step
    # A state that was saved at one rank is loaded at that rank, into a hook of another.
    other, its = given(hook_options, Script(policy.decisions), 1)
    its.load_state_dict(hook.state_dict())
    assert_bits(step_of(other, [low])[0], step_of(ddp, [low])[0])
    with pytest.raises(ValueError, match=r"expected a rank from 1 to 4, .* for layers\.0, got '5'"):
        given(hook_options, Script({0: treated(_0=q7x2.policy.ParameterPolicy(rank=5))}))


@pytest.mark.ranks(1)
def test_what_a_hook_cannot_do_is_said_when_it_is_attached() -> None:
    skip, int2 = q7x2.policy.ParameterPolicy(skip=True), q7x2.policy.ParameterPolicy("int2")
    for hook, chosen, message in (
        (q7x2.Quantize(), q7x2.policy.ParameterPolicy("int9"), "int9"),
        (q7x2.Quantize(use_error_feedback=False), skip, "only by a hook that keeps residuals"),
        (q7x2.TopK(0.1, momentum=0.9), skip, "only by a hook that keeps residuals"),
        (q7x2.EF21("int4"), skip, "a policy can only choose its compressor"),
        (q7x2.Allreduce(), int2, "compresses nothing"),
        (q7x2.PowerSGD(batched=True), int2, "has no levels"),
    ):
        with pytest.raises(ValueError, match=message):
            given(hook, Script({0: treated(_0=chosen)}))
    for policy, message in (
        (q7x2.policy.Accordion(8, 2), "expected a rank from 1 to 4"),
        (q7x2.policy.Accordion("int8", "int2"), "expected a rank from 1 to 4"),
        (q7x2.policy.ErrorBudget([1, 2, 8]), "expected a rank from 1 to 4"),
    ):
        with pytest.raises(ValueError, match=message):
            given(q7x2.PowerSGD(rank=4), policy)
    assert repr(q7x2.policy.Accumulate(q7x2.policy.FollowBandwidth(0.2))).startswith(
        "Accumulate(FollowBandwidth(share=0.2,"
    )
    with pytest.raises(TypeError, match=r"policy must be a q7x2\.policy\.Policy"):
        given(q7x2.Quantize(), "int8")
    with pytest.raises(ValueError, match="names: no parameter's name matches 'head"):
        given(q7x2.Quantize(), q7x2.policy.Accordion("int8", "int2", names=["head.*"]))


@pytest.mark.ranks(2)
def test_distributed_checkpoints_have_policies(shared: str) -> None:
    def fresh() -> tuple[Any, Any, Any]:
        policy = q7x2.policy.Accordion(4, 2, decide_every=1)
        return policy, *given(q7x2.PowerSGD(rank=4, start_iter=0), policy, 1)

    policy, ddp, hook = fresh()
    for step in range(3):
        step_of(ddp, gradients_of(step, 1))
    assert policy.state_dict()["settled"] == {"layers.0": True}
    dcp.save({"hook": hook}, checkpoint_id=shared)
    again, other, its = fresh()
    dcp.load({"hook": its}, checkpoint_id=shared)
    assert again.state_dict() == policy.state_dict()
    assert_bits(step_of(other, gradients_of(3, 1))[0], step_of(ddp, gradients_of(3, 1))[0])


@pytest.mark.ranks(2)
def test_a_resumed_training_decides_like_one_that_was_not_stopped() -> None:
    def fresh() -> tuple[Any, Any]:
        policy = q7x2.policy.Accordion("int8:g=128", "int2:g=128", decide_every=2)
        return given(q7x2.Quantize("int8:g=128"), policy)

    ddp, _ = fresh()
    expected = [[g.clone() for g in step_of(ddp, gradients_of(step))] for step in range(7)]
    for stop in range(1, 6):
        ddp, hook = fresh()
        for step in range(stop):
            step_of(ddp, gradients_of(step))
        resumed, its = fresh()
        step_of(resumed, gradients_of(0))  # DDP chooses its buckets
        its.load_state_dict(copy.deepcopy(hook.state_dict()))
        for step in range(stop, 7):
            for name, mean in enumerate(step_of(resumed, gradients_of(step))):
                assert_bits(mean, expected[step][name], f"step {step} after a stop at {stop}")


@pytest.mark.ranks(2)
def test_decisions_hold_for_a_model_over_another_group() -> None:
    ranks = {0: 4, 2: 2}
    policy = Script({s: treated(_0=q7x2.policy.ParameterPolicy(rank=r)) for s, r in ranks.items()})
    ddp, hook = given(q7x2.PowerSGD(rank=4, start_iter=0), policy, 1)
    for step in range(3):
        step_of(ddp, gradients_of(step, 1))
    moved = DDP(copy.deepcopy(ddp.module), process_group=dist.new_group())
    sent = hook.stats.message_bytes
    step_of(ddp, gradients_of(3, 1))
    sent = hook.stats.message_bytes - sent
    state = hook.state_dict()
    hook.rebind(moved)
    assert hook.steps == 4
    assert_bits(
        residuals(hook)["layers.0"], next(iter(state["local"].values()))["residual"]["layers.0"]
    )
    step_of(moved, gradients_of(4, 1))
    assert hook.stats.message_bytes == sent  # rank 2 still


@pytest.mark.ranks(2)
def test_ranks_must_attach_the_same_policies() -> None:
    policy = q7x2.policy.Accordion("int8", "int2", decide_every=1 + dist.get_rank())
    with pytest.raises(
        ValueError,
        match=r"rank 0 has policies=\[Accordion\('int8', 'int2', decide_every=1\)\] where",
    ):
        given(q7x2.Quantize("int8"), policy)


@pytest.mark.ranks(2)
def test_each_gradient_gets_the_codec_it_needs() -> None:
    """By their shape, and not by their size: fewer bytes, and no layer loses more of itself."""
    sent, lost = [], []
    for policy in (
        [],
        q7x2.policy.BitAllocation("int4:g=128", ["int2:g=128", "int6:g=128"], decide_every=2),
    ):
        ddp, hook = given(q7x2.Quantize("int4:g=128"), policy, 4)
        for step in range(4):
            if step == 1:  # the first step measures
                before = hook.stats.message_bytes
            noise = gradients_of(step, 4)
            # Large and small noise, and large and small numbers of one magnitude.
            gradients = [noise[0], 1e-3 * noise[1], noise[2].sign(), 1e-3 * noise[3].sign()]
            step_of(ddp, gradients)
        sent.append(hook.stats.message_bytes - before)
        # Over all ranks: who loses what the sum loses depends on the Plan.
        left = torch.stack([r.square().sum() for r in residuals(hook).values()])
        whole = torch.stack([g.square().sum() for g in gradients])
        for squares in (left, whole):
            dist.all_reduce(squares)
        lost.append((left / whole).sqrt().tolist())
    chosen = {event.parameter: event.level for event in policy.history}
    assert chosen["layers.2"] == chosen["layers.3"] == "int2:g=128"
    assert "int2:g=128" not in (chosen["layers.0"], chosen["layers.1"])
    assert sent[1] < 0.8 * sent[0]
    assert all(b < 1.2 * a + 1e-3 for a, b in zip(*lost, strict=True)), lost


@pytest.mark.ranks(2)
def test_a_choice_that_was_skipped_is_made_up_for() -> None:
    """GradScaler commonly skips the first step."""
    policy = q7x2.policy.BitAllocation("int4", ["int2", "int8"], decide_every=50)
    ddp, hook = attached(q7x2.Quantize("int4"), attach={"policy": policy})
    for step in range(3):
        backward(ddp, step, scale=math.inf if step == 0 else 1.0)
        ddp.zero_grad()
        assert bool(policy.history) == (step == 2), step
    assert hook.stats.skipped_steps == 1


@pytest.mark.parametrize("on_stock", [False, True])
@pytest.mark.ranks(2)
def test_gradients_that_change_get_the_mild_codec(on_stock: bool) -> None:
    """Each by its own norm over all ranks, at each choice beside the choice before."""
    policy = q7x2.policy.Accordion("int8", "int2", change=0.5, decide_every=2)
    options = q7x2.Quantize("int8", use_error_feedback=False)
    group = dist.new_group(backend="gloo") if on_stock else None
    ddp, hook = given(options, policy, process_group=group)
    # Norms of three gradients, by step. The choices are made after steps 0, 2, 4 and 6.
    norms = [
        (1.0, 1.0, 1.0),
        (1.0, 9.0, 1.0),
        (1.4, 1.6, 0.6),
        (1.0, 1.0, 1.0),
        (1.4, 0.7, 1.0),
        (1.0, 1.0, 1.0),
        (0.0, 0.7, 1.4),
        (1.0, 1.0, 1.0),
    ]
    expected = {1: (0, 0, 0), 3: (1, 0, 1), 5: (1, 0, 0), 7: (0, 1, 1)}
    sent = []
    for step, of_step in enumerate(norms):
        direction = torch.randn(64, 64, generator=torch.Generator().manual_seed(step))
        direction *= 2 / direction.norm()
        # The first rank has the larger part: one that looked at itself would choose otherwise.
        share = 0.99 if dist.get_rank() == 0 else 0.01
        step_of(ddp, [direction * norm * share for norm in of_step])
        if step in expected:
            settled = policy.state_dict()["settled"]
            assert tuple(settled[f"layers.{i}"] for i in range(3)) == expected[step], step
        sent.append(hook.stats.message_bytes)
    assert sent[3] - sent[2] < 0.7 * (sent[1] - sent[0])  # two of three through int2
    again = q7x2.policy.Accordion("int8", "int2", change=0.5, decide_every=2)
    _, other = given(options, again, process_group=group)
    other.load_state_dict(hook.state_dict())
    assert again.state_dict() == policy.state_dict()
    _, without = given(options, None, process_group=group)
    with pytest.raises(q7x2.hooks.HookStateError, match="was saved with policies"):
        without.load_state_dict(hook.state_dict())


@pytest.mark.ranks(2)
def test_policies_accumulate_gradients() -> None:
    ddp, hook = given(q7x2.Quantize("int8"), q7x2.policy.Accumulate(3), 1)
    lasts = []
    for i in range(6):
        with hook.accumulate() as is_last:
            ddp(gradients_of(i, 1)).backward()
        lasts.append(is_last)
        if i == 2:
            expected = sum(mean_of(j, 1)[0] for j in range(3))
            assert_close(next(ddp.parameters()).grad, expected, rtol=0.05, atol=0.05)
    assert lasts == [False, False, True] * 2
    assert (hook.steps, hook.cadence) == (2, 3)
    steps = [
        q7x2.policy.Accumulate(q7x2.policy.PostLocal(2, 4)).decide(step, None).cadence
        for step in range(4)
    ]
    assert steps == [1, 1, 4, 4]
