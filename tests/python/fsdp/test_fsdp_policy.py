"""Policies on FSDP2 models: facts, policies of param groups, residuals that go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import (
    Job,
    adam,
    backward,
    exact_gradients,
    mesh_over,
    own_residuals,
    sharded,
    sum_of_residuals,
    train,
    two_hosts,
    whole_gradients,
    whole_weights,
)
from pairs import each_value
from policy_training import Script
from q7x2._core.runner import Row
from q7x2.fsdp.facts import WireClock
from q7x2.fsdp.group_policy import GroupPolicy, combined
from values import assert_bits, assert_close

INNER = [f"blocks.{i}.inner.weight" for i in range(2)]
OUTER = [f"blocks.{i}.outer.weight" for i in range(2)]
MATRICES = ["first.weight", "last.weight", *INNER, *OUTER]


def everywhere(policy: q7x2.policy.ParameterPolicy, **options: Any) -> q7x2.policy.Decision:
    return q7x2.policy.Decision(dict.fromkeys(MATRICES, policy), measures=True, **options)


def test_the_finest_treatment_of_a_group_holds_for_all_of_it() -> None:
    whole, skip = Row(True, False, ""), Row(False, True, "")
    int2, int8, plain = (Row(False, False, codec) for codec in ("int2", "int8", ""))
    for rows, expected in (
        ([plain, plain], GroupPolicy("int4:g=128")),
        ([int2, int2], GroupPolicy("int2")),
        ([int2, int8], GroupPolicy("int8")),
        ([plain, int2], GroupPolicy("int4:g=128")),
        ([skip, int2], GroupPolicy("int2")),
        ([skip, plain], GroupPolicy("int4:g=128")),
        ([skip, skip], GroupPolicy("int4:g=128", is_skipped=True)),
        ([int8, whole, skip], GroupPolicy("int4:g=128", is_whole=True)),
        ([], GroupPolicy("int4:g=128")),
    ):
        assert combined(rows, "int4:g=128") == expected, rows


def test_a_clock_counts_overlapping_collectives_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(seconds: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: seconds)

    clock = WireClock()
    futures: list[torch.futures.Future[None]] = [torch.futures.Future() for _ in range(3)]
    at(100.0)
    clock.begin_step()
    assert clock.last == (0.0, 0.0)
    at(101.0)
    clock.watch(futures[0])
    at(102.0)
    clock.watch(futures[1])
    at(104.0)
    futures[0].set_result(None)
    at(105.0)
    futures[1].set_result(None)
    at(107.0)
    clock.watch(futures[2])
    at(110.0)
    clock.begin_step()
    assert clock.last == (10.0, 7.0)
    at(111.0)
    futures[2].set_result(None)  # of the step before, noticed late
    at(114.0)
    clock.begin_step()
    assert clock.last == (4.0, 1.0)


@pytest.mark.parametrize(
    ("codec", "backend"),
    each_value(["int8", "int4:g=128", "hadamard+int4:g=128"], ["q7x2", "gloo"]),
)
@pytest.mark.ranks(3)
def test_a_policy_that_stays_at_one_codec_changes_no_bit(codec: str, backend: str) -> None:
    """Whether the hook's options or the policy name it, and although all steps are measured."""
    mesh = mesh_over(backend)
    without = Job(mesh, q7x2.Sharded(gradients=codec))
    expected = without.train(range(4))
    weights, residuals = whole_weights(without.model), own_residuals(without.hook)
    decision = everywhere(q7x2.policy.ParameterPolicy(codec), candidates=["int2:g=128"])
    for options in (q7x2.Sharded(gradients=codec), q7x2.Sharded(gradients="int6:g=64")):
        job = Job(mesh, options, {"policy": Script({0: decision})})
        assert job.train(range(4)) == expected
        for name, weight in whole_weights(job.model).items():
            assert_bits(weight, weights[name], name)
        for name, residual in own_residuals(job.hook).items():
            assert_bits(residual, residuals[name], name)
        assert job.hook.stats.message_bytes == without.hook.stats.message_bytes


@pytest.mark.parametrize(("skips_steps", "backend"), each_value([True, False], ["q7x2", "gloo"]))
@pytest.mark.ranks(3)
def test_residuals_go_on_when_the_codec_changes(backend: str, skips_steps: bool) -> None:
    """What was received in all steps and what is still kept is the sum of all gradients."""
    policies = [
        q7x2.policy.ParameterPolicy("int4:g=128"),
        q7x2.policy.ParameterPolicy("int6:g=64"),
        q7x2.policy.ParameterPolicy(skip=True),
        q7x2.policy.ParameterPolicy("hadamard+int4:g=128"),
        q7x2.policy.ParameterPolicy(whole=True),
        q7x2.policy.ParameterPolicy("int2:g=128"),
    ]
    policy = Script({step: everywhere(each) for step, each in enumerate(policies)})
    model = sharded(mesh_over(backend))
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0) if skips_steps else None
    options = q7x2.Sharded(gradients="int8", weights="none")
    hook = q7x2.attach(model, options, policy=policy, scaler=scaler)
    weights = whole_weights(model)
    received: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    for step, policy in enumerate(policies):
        model.zero_grad()
        sent = hook.stats.message_bytes
        backward(model, step)
        sent = hook.stats.message_bytes - sent
        gradients = whole_gradients(model)
        for name, gradient in gradients.items():
            received[name] = received.get(name, 0) + gradient.double()
        for name, p in exact_gradients(step, range(3), weights).named_parameters():
            if p.grad is not None:
                exact[name] = exact.get(name, 0) + p.grad.double()
        kept = sum_of_residuals(hook)
        assert kept.keys() == set(MATRICES)
        for name in MATRICES:
            total = received[name] + kept[name]
            assert_close(total, exact[name], (step, name), rtol=1e-4, atol=1e-6)
            assert bool(kept[name].any()) != policy.whole, (step, name)
            assert bool(gradients[name].any()) != policy.skip, (step, name)
        if policy.skip:
            assert sent < hook.stats.gradient_bytes / 100


@pytest.mark.ranks(3)
def test_facts_are_sums_over_the_ranks() -> None:
    decisions = {0: everywhere(q7x2.policy.ParameterPolicy(), candidates=["int2:g=128", "int8"])}
    decisions[2] = q7x2.policy.Decision()
    policy = Script(decisions)
    model = sharded(mesh_over("q7x2"))
    options = q7x2.Sharded(gradients="int4:g=128", weights="none")
    hook = q7x2.attach(model, options, policy=policy)
    weights = whole_weights(model)
    for step in range(3):
        before = own_residuals(hook)
        model.zero_grad()
        backward(model, step)
        mine = exact_gradients(step, range(dist.get_rank(), dist.get_rank() + 1), weights)
        hook.state_dict()  # asks the policy
        facts = policy.facts[-1]
        assert (facts.step, facts.is_finite) == (step, True)
        assert len({repr(each) for each in _everybody(facts)}) == 1
        if step == 2:
            assert not facts.gradients
            continue
        assert set(facts.gradients) == set(MATRICES)
        assert (facts.step_seconds > 0) == (step > 0)
        assert facts.wire_seconds <= 1.001 * facts.step_seconds
        assert (facts.wire_seconds > 0) == (step > 0)
        for name, p in mine.named_parameters():
            if name not in facts.gradients:
                continue
            squares = torch.tensor([(p.grad / 3).square().sum(), before[name].square().sum()])
            dist.all_reduce(squares)
            one = facts.gradients[name]
            assert [one.gradient, one.residual] == pytest.approx(
                squares.sqrt().tolist(), rel=1e-3, abs=1e-9
            )
            assert one.uses == 3
            assert 0 < 100 * one.errors["int8"] < one.errors["int2:g=128"]
    assert len(policy.facts) == 3


def _everybody(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _levels(policies: Mapping[str, str]) -> q7x2.policy.Decision:
    return q7x2.policy.Decision(
        {n: q7x2.policy.ParameterPolicy(level) for n, level in policies.items()}
    )


@pytest.mark.ranks(2)
def test_param_groups_have_codecs_of_their_own() -> None:
    """In a block the finer one of its two matrices; elsewhere what the options say."""
    sent = []
    for policies in (
        {},
        dict.fromkeys(INNER, "int8:g=128"),
        dict.fromkeys(INNER, "int2:g=128") | dict.fromkeys(OUTER, "int8:g=128"),
        dict.fromkeys(INNER + OUTER, "int2:g=128"),
    ):
        model = sharded(mesh_over("q7x2"))
        options = q7x2.Sharded(gradients="int4:g=128", weights="none")
        hook = q7x2.attach(model, options, policy=Script({0: _levels(policies)}))
        backward(model, 0)
        sent.append(hook.stats.message_bytes)
    assert sent[1] == sent[2] > sent[0] > sent[3]


@pytest.mark.ranks(2)
def test_a_step_that_one_rank_finds_not_finite_is_known_to_all() -> None:
    policy = Script({0: everywhere(q7x2.policy.ParameterPolicy("int4:g=128"))})
    model = sharded(mesh_over("q7x2"))
    hook = q7x2.attach(model, q7x2.Sharded(gradients="int8"), policy=policy)
    backward(model, 0, scale=float("inf") if dist.get_rank() == 1 else 1.0)
    hook.state_dict()
    assert [facts.is_finite for facts in policy.facts] == [False]


@pytest.mark.ranks(4)
def test_policies_steer_shards_and_replicas() -> None:
    """Each with codecs of its own; all ranks have the same facts, and so the same history."""
    mesh, replicas = two_hosts()
    model = sharded(mesh)
    shards = q7x2.policy.Accordion("int8", "int4:g=128", decide_every=2, names=MATRICES)
    between = q7x2.policy.BitAllocation(
        "int8", ["int2:g=128"], decide_every=3, names=["replicas:*"]
    )
    seen = Script({0: q7x2.policy.Decision(measures=True, candidates=["int2:g=128"])})
    hook = q7x2.attach(
        model,
        q7x2.Sharded(gradients="int8", replica_hook=q7x2.Quantize("int8")),
        replica_group=replicas,
        policy=[shards, between, seen],
    )
    train(model, adam(model), range(6))
    hook.state_dict()
    assert {event.parameter for event in shards.history} == set(MATRICES)
    names = {"replicas:root", *(f"replicas:blocks.{i}" for i in range(2))}
    assert set(seen.facts[-1].gradients) == names | set(MATRICES)
    assert {event.parameter for event in between.history} == names
    assert all(gradient.uses == 4 for gradient in seen.facts[-1].gradients.values())
    everybody = _everybody((shards.state_dict(), between.state_dict(), repr(seen.facts)))
    assert all(each == everybody[0] for each in everybody)


@pytest.mark.ranks(4)
def test_policies_steer_replicas_of_uncompressed_shards() -> None:
    mesh, replicas = two_hosts()
    sent = {}
    for level in ("int2:g=128", "int8:g=128"):
        policy = q7x2.policy.Accordion(level, level, decide_every=1)
        model = sharded(mesh)
        hook = q7x2.attach(model, q7x2.Quantize("int8"), replica_group=replicas, policy=policy)
        train(model, adam(model), range(2))
        before = hook.stats.message_bytes
        train(model, adam(model), range(2, 3))
        sent[level] = hook.stats.message_bytes - before
        assert len({event.parameter for event in policy.history}) == 3
    assert sent["int8:g=128"] > 2 * sent["int2:g=128"]


@pytest.mark.ranks(2)
def test_what_cannot_be_decided_is_said_when_the_policy_is_attached() -> None:
    model = sharded(mesh_over("q7x2"))
    skip = Script({0: everywhere(q7x2.policy.ParameterPolicy(skip=True))})
    for options, policy, message in (
        (q7x2.Sharded(gradients="none"), skip, "this hook compresses none"),
        (q7x2.Sharded(use_error_feedback=False), skip, "only by a hook that keeps residuals"),
        (
            q7x2.Sharded(),
            q7x2.policy.Accordion(4, 2),
            "rank 4, but q7x2.Sharded sends gradients through",
        ),
        (
            q7x2.Sharded(),
            q7x2.policy.Accordion("int8", "topk:0.01"),
            "policy: expected a codec whose",
        ),
        (
            q7x2.Sharded(),
            q7x2.policy.Accordion("int8", "int2", decide_every=1 + dist.get_rank()),
            "the same pol",
        ),
        (
            q7x2.Sharded(),
            q7x2.policy.Accordion("int8", "int2", names=["head"]),
            "no parameter's name",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            q7x2.attach(model, options, policy=policy)
    q7x2.attach(model, q7x2.Sharded(), policy=q7x2.policy.Accordion("int8", "int2"))
    train(model, adam(model), range(2))
