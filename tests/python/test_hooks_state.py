"""What a hook remembers: saved, resumed, shared out anew, refused, untouched by skipped steps."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    assert_same_on_all_ranks,
    assert_states_equal,
    attached,
    backward,
    batch,
    exact,
    net,
    residuals,
    sgd,
    sum_over_ranks,
    train,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

EVERY_HOOK = [
    pytest.param(hook, id=name) for name, hook in HOOKS.items() if name not in ("dense", "bf16")
]
BUCKETS = {"one": {}, "many": SMALL_BUCKETS}


def everybody(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def parameters_of(ddp: nn.Module) -> list[torch.Tensor]:
    return [p for p in ddp.parameters() if p.numel()]


def resumed(hook: Any, saved: dict[str, Any], **options: Any) -> tuple[DDP, q7x2.Attached, Any]:
    """A new process's model, optimizer and hook, as far as one process can have them."""
    ddp, at_work = attached(hook, net(seed=9), **options)
    optimizer = sgd(ddp)
    # DDP settles its buckets in the first backward, and with them the order of additions.
    backward(ddp, 0)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    at_work.load_state_dict(saved["hook"])
    return ddp, at_work, optimizer


# --- resume ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", BUCKETS.values(), ids=BUCKETS)
@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.ranks(2, 3)
def test_resume_is_bit_identical(hook: Any, options: dict[str, Any], shared: str) -> None:
    ddp, at_work = attached(hook, **options)
    optimizer = sgd(ddp)
    train(ddp, optimizer, range(5))
    path = f"{shared}/{dist.get_rank()}.pt"
    torch.save(
        {
            "model": ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
            "hook": at_work.state_dict(),
        },
        path,
    )
    train(ddp, optimizer, range(5, 9))
    again, hook_again, optimizer = resumed(hook, torch.load(path), **options)
    train(again, optimizer, range(5, 9))
    for p, q in zip(parameters_of(again), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert_states_equal(hook_again.state_dict(), at_work.state_dict())


@pytest.mark.ranks(2)
def test_resume_with_buckets_of_another_size() -> None:
    """State belongs to parameters: only the order of additions may differ."""
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    optimizer = sgd(ddp)
    train(ddp, optimizer, range(4))
    saved = {
        "model": copy.deepcopy(ddp.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "hook": at_work.state_dict(),
    }
    other, other_hook, other_optimizer = resumed(hook, saved, **SMALL_BUCKETS)
    for model, o in ((ddp, optimizer), (other, other_optimizer)):
        train(model, o, range(4, 8))
    for name, residual in residuals(at_work).items():
        assert_close(residuals(other_hook)[name], residual, name, rtol=1e-3, atol=1e-5)


# Only two of the ranks make groups in these, so the third has another name for the next group.
@pytest.mark.ranks(3, fresh=True)
def test_fewer_ranks_take_over_the_sum_of_the_residuals() -> None:
    """Three ranks save, two load; the third of them looks on."""
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    train(ddp, sgd(ddp), range(3))
    owed = {name: sum_over_ranks(r) for name, r in residuals(at_work).items()}
    states = everybody(at_work.state_dict())
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    smaller, smaller_hook = attached(hook, process_group=pair)
    with pytest.raises(q7x2.HookStateError, match="saved by 3 ranks and this job has 2"):
        smaller_hook.load_state_dict(states[0])
    smaller_hook.load_state_dict(states)
    state = smaller_hook.state_dict()
    assert state["world_size"] == 2
    assert state["step"] == 3
    for name, residual in residuals(smaller_hook).items():
        total = residual.double()
        dist.all_reduce(total, group=pair)
        assert_close(total, owed[name], name, rtol=1e-6, atol=1e-9)
    for name, basis in state["shared"]["basis"].items():
        assert_bits(basis, states[0]["shared"]["basis"][name], name)
    backward(smaller, 3)


@pytest.mark.parametrize("name", ["alternating", "batched"])
@pytest.mark.ranks(2)
def test_distributed_checkpoint(name: str, shared: str) -> None:
    """The hook is a Stateful; every rank gets its own residuals back."""
    hook = HOOKS[name]
    ddp, at_work = attached(hook, **SMALL_BUCKETS)
    train(ddp, sgd(ddp), range(3))
    dcp.save({"hook": at_work}, checkpoint_id=f"{shared}/checkpoint")
    _, fresh = attached(hook, net(seed=1))
    dcp.load({"hook": fresh}, checkpoint_id=f"{shared}/checkpoint")
    assert_states_equal(fresh.state_dict(), at_work.state_dict())


@pytest.mark.ranks(3, fresh=True)
def test_distributed_checkpoint_on_fewer_ranks(shared: str) -> None:
    hook = HOOKS["powersgd"]
    ddp, at_work = attached(hook)
    train(ddp, sgd(ddp), range(3))
    owed = {name: sum_over_ranks(r) for name, r in residuals(at_work).items()}
    dcp.save({"hook": at_work}, checkpoint_id=f"{shared}/checkpoint")
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return
    _, smaller_hook = attached(hook, process_group=pair)
    state = {"hook": smaller_hook.empty_state_dict(world_size=3)}
    dcp.load(state, checkpoint_id=f"{shared}/checkpoint", process_group=pair)
    smaller_hook.load_state_dict(state["hook"])
    for name, residual in residuals(smaller_hook).items():
        total = residual.double()
        dist.all_reduce(total, group=pair)
        assert_close(total, owed[name], name, rtol=1e-6, atol=1e-9)


@pytest.mark.ranks(1)
def test_states_that_do_not_fit_are_refused() -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    backward(ddp, 0)
    good = at_work.state_dict()

    def refused(because: str, state: Any = good, **changes: Any) -> None:
        before = at_work.state_dict()
        with pytest.raises(q7x2.HookStateError, match=because):
            at_work.load_state_dict({**state, **changes} if changes else state)
        assert_states_equal(at_work.state_dict(), before)

    refused("expected the state of a q7x2 hook", state={"weight": torch.zeros(1)})
    refused("version 1, got version 7", version=7)
    refused("hook PowerSGD, got that of Allreduce", hook="Allreduce")
    refused("rank was 3 and is 2", recipe={**good["recipe"], "rank": 3})
    refused("expected the state of rank_0", local={"rank_1": good["local"]["rank_0"]})
    refused(
        "expected the state of this model, got another's: parameter last.bias",
        shapes={name: shape for name, shape in good["shapes"].items() if name != "last.bias"},
    )
    refused(
        "layers.0.weight is 64x64 here and 64x32 in the state",
        shapes={**good["shapes"], "layers.0.weight": "64x32"},
    )
    wrong = copy.deepcopy(good)
    wrong["shared"]["basis"]["extra.weight"] = torch.zeros(3, 3)
    refused("expected the basis of extra.weight", state=wrong)
    flat, flat_hook = attached(HOOKS["batched"])
    backward(flat, 0)
    wrong = flat_hook.state_dict()
    wrong["shared"]["basis_by_bucket"]["all"] = b"nonsense"
    with pytest.raises(q7x2.HookStateError, match="cannot be read"):
        flat_hook.load_state_dict(wrong)
    refused("not of one moment", state=[good, {**good, "step": 5}])
    refused("got none", state=[])


@pytest.mark.ranks(1)
def test_state_is_at_rest_between_steps_only() -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0), **SMALL_BUCKETS)
    refusals = []

    def look(gradient: torch.Tensor) -> torch.Tensor:
        try:
            at_work.state_dict()
        except RuntimeError as error:
            refusals.append(str(error))
        return gradient

    # The first layer's gradient comes last: other buckets are on their way.
    ddp.module.convolution.weight.register_hook(look)
    backward(ddp, 0)
    backward(ddp, 1)
    assert len(refusals) >= 1
    assert "between steps only" in refusals[0]
    assert at_work.state_dict()["step"] == 2


@pytest.mark.ranks(4)
def test_distributed_checkpoint_of_models_over_subgroups(shared: str) -> None:
    """Two models, each over two of the ranks, with parameters of the same names."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = dist.get_rank() % 2

    def trained(steps: int) -> q7x2.Attached:
        ddp, at_work = attached(
            HOOKS["int4"], net(mine), process_group=groups[mine], **SMALL_BUCKETS
        )
        for step in range(steps):
            backward(ddp, step)
        return at_work

    before, after = trained(3), trained(1)
    dcp.save({"hook": before}, checkpoint_id=shared)
    dcp.load({"hook": after}, checkpoint_id=shared)
    assert_states_equal(before.state_dict(), after.state_dict())


# --- AMP ------------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_a_model_with_a_scaler_can_be_copied_and_pickled() -> None:
    """Copies have no hook, and follow no scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ddp, at_work = attached(HOOKS["powersgd"], attach={"scaler": scaler})
    scaler.scale(torch.ones(1))
    backward(ddp, 0)
    copies = [copy.deepcopy(ddp.module), torch.optim.swa_utils.AveragedModel(ddp)]
    torch.save(ddp, io.BytesIO())
    scaler.update(4.0)
    for each in copies:
        each(torch.zeros(1, 64))
    assert at_work.state_dict()["loss_scale"] == 8.0
    ddp(torch.zeros(1, 64))
    assert at_work.state_dict()["loss_scale"] == 4.0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["layers.2.weight", "layers.0.bias"])
@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.ranks(2)
def test_a_skipped_step_leaves_no_trace(hook: Any, name: str, bad: float) -> None:
    """One element on one rank, in one of many buckets, compressed or not."""
    ddp, at_work = attached(hook, attach=exact(), **SMALL_BUCKETS)
    train(ddp, sgd(ddp), range(3))
    before = at_work.state_dict()
    parameter = dict(ddp.module.named_parameters())[name]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        if dist.get_rank() == 1:
            gradient.view(-1)[5] = bad
        return gradient

    spoiling = parameter.register_hook(spoil)
    ddp.zero_grad()
    backward(ddp, 3)
    spoiling.remove()
    finite = [bool(p.grad.isfinite().all()) for p in parameters_of(ddp)]
    assert not all(finite)
    assert everybody(finite) == [finite] * 2
    after = at_work.state_dict()
    assert at_work.stats.skipped_steps == 1
    assert_states_equal(before | {"step": before["step"] + 1}, after)
    ddp.zero_grad()
    backward(ddp, 4)
    assert all(p.grad.isfinite().all() for p in parameters_of(ddp))


@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.ranks(2)
def test_without_a_scaler_a_skipped_step_costs_residuals_only(hook: Any) -> None:
    """There is one copy of them: what the step's gradients had is dropped, and nothing else."""
    ddp, at_work = attached(hook, **SMALL_BUCKETS)
    train(ddp, sgd(ddp), range(3))
    before = at_work.state_dict()
    ddp.zero_grad()
    backward(ddp, 3, scale=math.inf)
    after = at_work.state_dict()
    assert at_work.stats.skipped_steps == 1
    assert_states_equal(
        {"step": before["step"] + 1, "shared": before["shared"], "local": {}},
        {**after, "local": {}},
    )
    (local,) = after["local"].values()
    for tensors in local.values():
        for name, tensor in tensors.items():
            assert not tensor.any(), name
    ddp.zero_grad()
    backward(ddp, 4)
    assert all(p.grad.isfinite().all() for p in parameters_of(ddp))
    assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])


@pytest.mark.parametrize(
    "hook",
    [
        HOOKS["powersgd"],
        HOOKS["batched"],
        HOOKS["int4"],
        q7x2.Compose({"1.*": HOOKS["int8"], "*": HOOKS["powersgd"]}),
    ],
    ids=["powersgd", "batched", "int4", "composed"],
)
@pytest.mark.ranks(2)
def test_a_step_skipped_for_a_sparse_gradient_leaves_no_trace(hook: Any) -> None:
    model = nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64), nn.Linear(64, 8))
    ddp, at_work = attached(hook, model, attach=exact(), **SMALL_BUCKETS)
    rows = torch.arange(16) + dist.get_rank()
    for _ in range(5):  # more than one of bursts
        ddp.zero_grad()
        ddp(rows).square().mean().backward()
    before, steps = at_work.state_dict(), at_work.stats.skipped_steps
    ddp.zero_grad()
    ddp.module[0].weight.register_hook(lambda g: g * math.inf if dist.get_rank() == 1 else g)
    ddp(rows).square().mean().backward()
    assert not ddp.module[0].weight.grad.to_dense().isfinite().all()
    assert at_work.stats.skipped_steps == steps + 1
    assert_states_equal(before | {"step": before["step"] + 1}, at_work.state_dict())


@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.ranks(2)
def test_a_moving_loss_scale_does_not_change_a_bit(hook: Any) -> None:
    """Powers of two are exact, so a scaled training is that of full scale, skipped steps apart."""
    plain, _ = attached(hook, **SMALL_BUCKETS)
    train(plain, sgd(plain), range(6))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    ddp, at_work = attached(hook, attach={"scaler": scaler}, **SMALL_BUCKETS)
    optimizer = sgd(ddp)
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        scales.append(scaler.scale(torch.ones(())).item())
        backward(ddp, step, scale=scales[-1])
        scaler.step(optimizer)
        scaler.update()
    assert len(set(scales)) == 3
    for p, q in zip(parameters_of(ddp), parameters_of(plain), strict=True):
        assert_bits(p, q)
    assert at_work.state_dict()["loss_scale"] == scales[-1]


@pytest.mark.ranks(1)
def test_a_state_of_another_loss_scale_is_converted() -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    backward(ddp, 0, scale=8.0)
    at_work.scale_changed(1.0, 8.0)
    at_work._runner.rescale(1 / 8.0)  # the gradient above was of scale 8 already
    saved, expected = at_work.state_dict(), residuals(at_work)
    _, unscaled = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    unscaled.load_state_dict(saved)
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    other, scaled = attached(q7x2.PowerSGD(rank=2, start_iter=0), attach={"scaler": scaler})
    scaled.load_state_dict(saved)
    other(torch.zeros(1, 64))
    for name, residual in expected.items():
        assert_bits(residuals(unscaled)[name], residual / 8, name)
        assert_bits(residuals(scaled)[name], residual * 4, name)
    with pytest.raises(ValueError, match="loss scales must be positive"):
        scaled.scale_changed(0.0, 2.0)


# --- hooks registered with DDP itself -------------------------------------------------------------


@pytest.mark.parametrize("options", BUCKETS.values(), ids=BUCKETS)
@pytest.mark.ranks(2, 3)
def test_registered_powersgd_is_the_attached_one(options: dict[str, Any]) -> None:
    ddp, at_work = attached(q7x2.PowerSGD(rank=2, start_iter=1, factors="fp32"), **options)
    train(ddp, sgd(ddp), range(4))
    state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    registered = DDP(net(), **options)
    registered.register_comm_hook(state, q7x2.comm_hooks.powerSGD_hook)
    its_hook = state.of(registered)
    train(registered, sgd(registered), range(4))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert_states_equal(its_hook.state_dict(), at_work.state_dict())
    rate, before, after = state.compression_stats()
    assert rate == before / after > 1


@pytest.mark.ranks(2)
def test_registered_without_its_model_it_cannot_be_saved() -> None:
    state = q7x2.comm_hooks.PowerSGDState(None, start_powerSGD_iter=1)
    ddp = DDP(net())
    ddp.register_comm_hook(state, q7x2.comm_hooks.powersgd_hook)
    train(ddp, sgd(ddp), range(3))
    assert_same_on_all_ranks(parameters_of(ddp))
    with pytest.raises(RuntimeError, match="before the first backward"):
        state.of(ddp)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("allreduce_hook", None),
        ("fp16_compress_hook", torch.float16),
        ("bf16_compress_hook", torch.bfloat16),
    ],
)
@pytest.mark.ranks(2)
def test_registered_dense_hooks_are_the_attached_ones(name: str, dtype: Any) -> None:
    ddp, _ = attached(q7x2.Allreduce(dtype=dtype), **SMALL_BUCKETS)
    registered = DDP(net(), **SMALL_BUCKETS)
    registered.register_comm_hook(None, getattr(q7x2.comm_hooks, name))
    for model in (ddp, registered):
        train(model, sgd(model), range(3))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)


@pytest.mark.ranks(2)
def test_registered_batched_powersgd_is_the_attached_one() -> None:
    options = q7x2.PowerSGD(rank=2, start_iter=1, batched=True, factors="fp32")
    ddp, at_work = attached(options, **SMALL_BUCKETS)
    state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    registered = DDP(net(), **SMALL_BUCKETS)
    registered.register_comm_hook(state, q7x2.comm_hooks.batched_powerSGD_hook)
    for model in (ddp, registered):
        train(model, sgd(model), range(4))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)
    assert at_work.stats.message_bytes == state.stats.message_bytes
    named = q7x2.comm_hooks.PowerSGDState(None)
    assert named.stats.steps == 0
    saved = DDP(net())
    saved.register_comm_hook(named, q7x2.comm_hooks.batched_powerSGD_hook)
    hook = named.of(saved)
    backward(saved, 0)
    assert hook.step == 1
    hook.load_state_dict(hook.state_dict())
    used = q7x2.comm_hooks.PowerSGDState(None)
    ddp = DDP(net())
    ddp.register_comm_hook(used, q7x2.comm_hooks.powerSGD_hook)
    backward(ddp, 0)
    with pytest.raises(RuntimeError, match="powerSGD_hook's: make another one"):
        q7x2.comm_hooks.batched_powerSGD_hook(used, None)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("quantization_pertensor_hook", "int8:g=1024:minmax"),
        ("quantization_perchannel_hook", "int8:g=512:minmax"),
    ],
)
@pytest.mark.ranks(2)
def test_registered_quantization_hooks_are_the_attached_ones(name: str, codec: str) -> None:
    ddp, _ = attached(
        q7x2.Quantize(codec, compress_vectors=True, use_error_feedback=False), **SMALL_BUCKETS
    )
    registered = DDP(net(), **SMALL_BUCKETS)
    registered.register_comm_hook(None, getattr(q7x2.comm_hooks, name))
    for model in (ddp, registered):
        train(model, sgd(model), range(3))
    for p, q in zip(parameters_of(registered), parameters_of(ddp), strict=True):
        assert_bits(p, q)


@pytest.mark.parametrize("name", ["quantization_pertensor_hook", "fp16_compress_hook"])
@pytest.mark.ranks(2, 3)
def test_two_models_in_one_backward_share_a_registered_hook(name: str) -> None:
    models = [DDP(net(seed), **SMALL_BUCKETS) for seed in (0, 1)]
    for ddp in models:
        ddp.register_comm_hook(None, getattr(q7x2.comm_hooks, name))
    for step in range(20):
        x, y = batch(dist.get_rank(), step)
        sum(nn.functional.mse_loss(ddp(x), y) for ddp in models).backward()
    for ddp in models:
        assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])


@pytest.mark.ranks(4)
def test_post_local_sgd(world_size: int) -> None:
    """Global gradients for two steps, then those of pairs."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    state = q7x2.comm_hooks.PostLocalSGDState(None, pairs[mine], start_localSGD_iter=2)
    ddp = DDP(net(), **SMALL_BUCKETS)
    ddp.register_comm_hook(state, q7x2.comm_hooks.post_localSGD_hook)
    for step in range(4):
        ddp.zero_grad()
        backward(ddp, step)
        digests = everybody([p.grad.sum().item() for p in parameters_of(ddp)])
        assert digests[0] == digests[1]
        assert digests[2] == digests[3]
        assert (digests[0] == digests[2]) == (step < 2)
