"""Communication hooks: what they compute, whatever DDP does with its buckets."""

from __future__ import annotations

import gc
import io
import random
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    Net,
    assert_same_on_all_ranks,
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
from q7x2._hook_runner import make_runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

DDP_OPTIONS = [
    {},
    SMALL_BUCKETS,
    {**SMALL_BUCKETS, "gradient_as_bucket_view": True},
    {**SMALL_BUCKETS, "static_graph": True},
    {**SMALL_BUCKETS, "find_unused_parameters": True},
]
ids_of_options = {"ids": lambda o: "-".join(o) or "default"}


EVERY_HOOK = [pytest.param(hook, id=name) for name, hook in HOOKS.items()]


def parameters_of(ddp: nn.Module) -> list[torch.Tensor]:
    return [p for p in ddp.parameters() if p.numel()]


def gradients(ddp: DDP) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in ddp.module.named_parameters() if p.grad is not None}


# --- dense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", DDP_OPTIONS, **ids_of_options)
@pytest.mark.ranks(1, 2, 3)
def test_dense_is_ddp_without_a_hook(options: dict[str, Any]) -> None:
    plain = DDP(net(), **options)
    hooked, _ = attached(q7x2.Allreduce(), **options)
    for ddp in (plain, hooked):
        train(ddp, sgd(ddp), range(4))
    for (name, one), other in zip(plain.named_parameters(), hooked.parameters(), strict=True):
        assert_bits(other, one, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.ranks(2)
def test_dense_in_16_bits_rounds_once_on_each_side(dtype: torch.dtype) -> None:
    me, other = dist.get_rank(), 1 - dist.get_rank()
    ddp, hook = attached(q7x2.Allreduce(dtype=dtype))
    backward(ddp, 0)
    halves = []
    for rank in (me, other):
        alone = net()
        backward(alone, 0, rank=rank)
        halves.append([p.grad.to(dtype) * 0.5 for p in parameters_of(alone)])
    for p, mine, theirs in zip(parameters_of(ddp), *halves, strict=True):
        assert_bits(p.grad, (mine.float() + theirs.float()).to(dtype).float())
    assert hook.stats.message_bytes * 2 == hook.stats.gradient_bytes


# --- every hook -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.parametrize("options", DDP_OPTIONS[:3], **ids_of_options)
@pytest.mark.ranks(2, 3)
def test_replicas_stay_the_same_bits_and_learn(hook: Any, options: dict[str, Any]) -> None:
    ddp, at_work = attached(hook, **options)
    first = last = 0.0
    optimizer = sgd(ddp, hook)
    for step in range(12):
        optimizer.zero_grad()
        x, y = batch(dist.get_rank(), step % 3)
        loss = nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < 0.95 * first
    assert_same_on_all_ranks(parameters_of(ddp))
    assert at_work.stats.steps == 12


@pytest.mark.parametrize("hook", EVERY_HOOK)
@pytest.mark.ranks(3)
def test_delays_do_not_change_a_bit(hook: Any) -> None:
    """Gradients are ready in other order and at other times on every rank, with many buckets."""
    results = []
    for delays in (False, True):
        ddp, at_work = attached(hook, **SMALL_BUCKETS)
        chance = random.Random(dist.get_rank())

        def dawdle(gradient: torch.Tensor, chance: random.Random = chance) -> torch.Tensor:
            time.sleep(chance.choice([0, 0, 0.001, 0.02]))
            return gradient

        if delays:
            for p in parameters_of(ddp):
                p.register_hook(dawdle)
        train(ddp, sgd(ddp), range(5))
        assert at_work.stats.buckets >= 4 * 4
        results.append(parameters_of(ddp))
    for one, other in zip(*results, strict=True):
        assert_bits(other, one)


@pytest.mark.parametrize("hook", [HOOKS["dense"], HOOKS["powersgd"]], ids=["dense", "powersgd"])
@pytest.mark.ranks(2)
def test_several_models_in_turns(hook: Any) -> None:
    """Two models whose backwards interleave do what each does alone."""
    alone = []
    for seed in (0, 1):
        ddp, _ = attached(hook, net(seed), **SMALL_BUCKETS)
        train(ddp, sgd(ddp), range(4))
        alone.append(parameters_of(ddp))
    together = [attached(hook, net(seed), **SMALL_BUCKETS)[0] for seed in (0, 1)]
    optimizers = [sgd(ddp) for ddp in together]
    for step in range(4):
        for ddp, optimizer in zip(together, optimizers, strict=True):
            train(ddp, optimizer, range(step, step + 1))
    for ddp, expected in zip(together, alone, strict=True):
        for p, q in zip(parameters_of(ddp), expected, strict=True):
            assert_bits(p, q)


@pytest.mark.parametrize("hook", [HOOKS["dense"], HOOKS["powersgd"]], ids=["dense", "powersgd"])
@pytest.mark.ranks(2)
def test_no_sync_accumulates(hook: Any) -> None:
    """Two micro-batches, the first without communication: one reduction of their sum."""
    ddp, at_work = attached(hook, **SMALL_BUCKETS)
    whole, whole_hook = attached(hook, **SMALL_BUCKETS)
    for step in range(3):
        ddp.zero_grad()
        with ddp.no_sync():
            backward(ddp, 2 * step)
        backward(ddp, 2 * step + 1)
        whole.zero_grad()
        (x, y), (x2, y2) = (batch(dist.get_rank(), 2 * step + i) for i in (0, 1))
        (2 * nn.functional.mse_loss(whole(torch.cat([x, x2])), torch.cat([y, y2]))).backward()
        for p, q in zip(parameters_of(ddp), parameters_of(whole), strict=True):
            # A low rank magnifies the rounding of the sum, by an amount that varies with torch.
            error = (p.grad - q.grad).norm() / q.grad.norm()
            assert error < 1e-2, f"step {step}: relative error {error}"
    assert at_work.stats.steps == whole_hook.stats.steps == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.ranks(2)
def test_models_of_other_dtypes(dtype: torch.dtype) -> None:
    options = q7x2.PowerSGD(rank=4, start_iter=0)
    ddp, hook = attached(options, net(dtype=dtype), **SMALL_BUCKETS)
    reference, _ = attached(options, net(dtype=torch.float64), **SMALL_BUCKETS)
    for step in range(3):
        for model in (ddp, reference):
            model.zero_grad()
            backward(model, step)
        for (name, p), q in zip(ddp.named_parameters(), reference.parameters(), strict=True):
            if p.numel():
                assert p.grad.dtype == dtype
                error = (p.grad.double() - q.grad).norm() / q.grad.norm()
                assert error < {2: 0.1, 8: 1e-9}[dtype.itemsize], (name, step, error)
    assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {r.dtype for r in residuals(hook).values()} == {wide}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "which", [HOOKS["powersgd"], HOOKS["topk"], HOOKS["dgc"]], ids=["low", "top", "dgc"]
)
def test_unused_parameters_keep_their_state(which: Any) -> None:
    """The extra layer is left out for some steps, on one rank or on both."""
    ddp, hook = attached(which, find_unused_parameters=True, **SMALL_BUCKETS)
    backward(ddp, 0)
    before = residuals(hook)["extra.weight"]
    assert before.abs().max() > 0
    ddp.zero_grad(set_to_none=True)
    backward(ddp, 1, extra=dist.get_rank() == 0)
    assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])
    ddp.zero_grad(set_to_none=True)
    owed = sum_over_ranks(residuals(hook)["extra.weight"])
    backward(ddp, 2, extra=False)
    assert ddp.module.extra.weight.grad is None
    # DDP drops what is reduced for a parameter that nobody used, so nothing was paid back.
    assert_close(sum_over_ranks(residuals(hook)["extra.weight"]), owed, rtol=1e-5, atol=1e-7)


# Of these a gradient of zeros would not come out as zeros beside others.
SPILLING = {
    "batched": HOOKS["batched"],
    "one bit": q7x2.OneBit(start_iter=0),
    "wide one bit": q7x2.Quantize("onebit"),
    "rotated": q7x2.Quantize("hadamard+int4"),
    "minmax": q7x2.Quantize("int4:minmax"),
    "sign": q7x2.SignSGD(),
}


@pytest.mark.parametrize("hook", [pytest.param(hook, id=name) for name, hook in SPILLING.items()])
@pytest.mark.ranks(2)
def test_what_no_rank_used_gets_nothing_from_its_neighbours(hook: Any) -> None:
    """Neither while its gradient is zeros, nor later, from residuals."""
    ddp, at_work = attached(hook, find_unused_parameters=True)
    for step in range(3):
        ddp.zero_grad(set_to_none=True)
        backward(ddp, step, extra=False)
    (local,) = at_work.state_dict()["local"].values()
    for kind, kept in local.items():
        assert not kept["extra.weight"].any(), kind
    ddp, _ = attached(hook)
    with torch.no_grad():
        ddp.module.last.weight.zero_()  # all layers before it get zeros
    backward(ddp, 0)
    assert ddp.module.last.weight.grad.any()
    assert not ddp.module.extra.weight.grad.any()


@pytest.mark.ranks(2)
def test_detached_is_dense() -> None:
    plain = DDP(net(), **SMALL_BUCKETS)
    ddp, hook = attached(q7x2.PowerSGD(rank=1, start_iter=0), **SMALL_BUCKETS)
    backward(ddp, 0)
    hook.detach()
    for model in (plain, ddp):
        for step in (1, 2):
            model.zero_grad()
            backward(model, step)
    for p, q in zip(parameters_of(ddp), parameters_of(plain), strict=True):
        assert_bits(p.grad, q.grad)


@pytest.mark.ranks(2)
def test_uneven_inputs_join() -> None:
    """A rank that ran out of data shadows the others' backwards with zeros."""
    ddp, _ = attached(q7x2.PowerSGD(rank=2, start_iter=0), **SMALL_BUCKETS)
    with ddp.join():
        for step in range(3 + 2 * dist.get_rank()):
            backward(ddp, step)
    assert_same_on_all_ranks(parameters_of(ddp))


@pytest.mark.ranks(2)
def test_a_callback_may_ask_the_hook() -> None:
    """Callbacks of a bucket's future run in the hook's own thread."""
    state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    seen: list[int] = []

    def hook(state: q7x2.comm_hooks.PowerSGDState, bucket: dist.GradBucket) -> Any:
        def ask(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            seen.append(state.stats.buckets)
            return future.value()

        return q7x2.comm_hooks.powerSGD_hook(state, bucket).then(ask)

    hook.__annotations__.clear()  # DDP compares them with types, and these are strings
    ddp = DDP(net())
    ddp.register_comm_hook(state, hook)
    for step in range(3):
        backward(ddp, step)
    assert seen == [1, 2, 3]


@pytest.mark.ranks(2)
def test_the_last_reference_may_be_a_callbacks() -> None:
    """Callbacks run in the hook's own thread, which cannot wait for its own end."""
    kept = [make_runner(q7x2.Allreduce(), None, [("weight", torch.zeros(8))])]
    weak = weakref.ref(kept[0])
    last_is_ours = threading.Event()

    def drop(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        assert last_is_ours.wait(10)
        kept.clear()
        return future.value()

    future = kept[0].reduce_tensor(0, torch.ones(8), True).then(drop)
    last_is_ours.set()
    assert future.wait().tolist() == [1.0] * 8
    assert weak() is None


@pytest.mark.ranks(2)
def test_what_is_in_flight_fails_when_the_hook_goes() -> None:
    runner = make_runner(q7x2.Allreduce(), None, [("weight", torch.zeros(8))])
    if dist.get_rank() == 0:  # rank 1 never calls
        future = runner.reduce_tensor(0, torch.ones(8), True)
        del runner
        with pytest.raises(RuntimeError, match="destroyed while a gradient was being reduced"):
            future.wait()
    dist.barrier()


@pytest.mark.ranks(2)
def test_a_registered_hook_keeps_no_model() -> None:
    """Hooks without state are shared by models, and live as long as the process group."""
    ddp = DDP(net())
    ddp.register_comm_hook(None, q7x2.comm_hooks.fp16_compress_hook)
    backward(ddp, 0)
    parameters = [weakref.ref(p) for p in ddp.parameters()]
    del ddp
    gc.collect()
    assert [p() for p in parameters] == [None] * len(parameters)


@pytest.mark.ranks(2)
def test_lanes_have_the_timeout_of_the_models_group() -> None:
    group = dist.new_group(timeout=timedelta(seconds=77))
    ddp = DDP(net(), process_group=group)
    timeouts = []
    real = dist.new_group

    def recorded(*args: Any, **options: Any) -> Any:
        timeouts.append(options["timeout"])
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", recorded)
        q7x2.attach(ddp, q7x2.PowerSGD())
    assert timeouts == [timedelta(seconds=77)] * 2


@pytest.mark.parametrize("name", ["powersgd", "int8"])
@pytest.mark.ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_debug_detail(name: str) -> None:
    """torch then wraps process groups, and checks each collective with all ranks."""
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    ddp, hook = attached(HOOKS[name], **SMALL_BUCKETS)
    for step in range(3):
        backward(ddp, step)
    assert hook.step == 3
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])


# --- PowerSGD -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.ranks(2)
def test_fp16_overflows_in_the_hook_are_skipped_steps(batched: bool) -> None:
    """Gradients and residuals that fit, and whose sum does not."""
    ddp = DDP(nn.Linear(32, 32, bias=False).half())
    hook = q7x2.attach(ddp, q7x2.PowerSGD(rank=1, start_iter=0, batched=batched), **exact())
    gradient = torch.zeros(32, 32)
    gradient[:16, :16], gradient[16:, 16:] = 30000, 20000

    def give(scale: float) -> torch.Tensor:
        ddp.zero_grad()
        # The gradient of each weight is what its output is multiplied by.
        (ddp(torch.eye(32).half()).float().t() * gradient * scale).sum().backward()
        return ddp.module.weight.grad

    for _ in range(40):
        before = residuals(hook)["weight"]
        if not give(1).isfinite().all():
            break
    assert hook.stats.skipped_steps == 1
    assert_bits(residuals(hook)["weight"], before)
    for _ in range(3):
        assert give(1e-4).isfinite().all()
    assert residuals(hook)["weight"].isfinite().all()


def without_empty_parameter() -> Net:
    """PyTorch's hook cannot bear one."""
    model = net()
    model.nothing.requires_grad_(False)
    return model


def torch_powersgd(rank: int, bases: dict[str, torch.Tensor]) -> tuple[DDP, Any]:
    """PyTorch's own hook, made to start from the same factors."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

    state = theirs.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    ddp = DDP(without_empty_parameter())
    names = {p: n for n, p in ddp.module.named_parameters()}

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        assert bucket.index() == 0
        assert bucket.is_last()
        if state.iter == 2:
            qs = [bases[names[p]].flatten() for p in bucket.parameters() if names[p] in bases]
            state.q_memory_dict[0] = torch.cat(qs)
            state.p_memory_dict[0] = torch.empty(
                sum(
                    p.shape[0] * bases[names[p]].shape[1]
                    for p in bucket.parameters()
                    if names[p] in bases
                )
            )
        return theirs.powerSGD_hook(state, bucket)

    hook.__annotations__.clear()
    ddp.register_comm_hook(state, hook)
    return ddp, state


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.ranks(2, 3)
def test_powersgd_agrees_with_torch(rank: int) -> None:
    """Gradients of five compressed steps, with error feedback, one bucket."""
    options = q7x2.PowerSGD(rank=rank, start_iter=2, factors="fp32")
    ours, hook = attached(options, without_empty_parameter())
    theirs, _ = torch_powersgd(rank, hook.state_dict()["shared"]["basis"])
    for step in range(7):
        for ddp in (ours, theirs):
            ddp.zero_grad()
            backward(ddp, step)
        for (name, p), q in zip(ours.module.named_parameters(), theirs.parameters(), strict=True):
            if p.numel():
                error = (p.grad - q.grad).norm() / q.grad.norm()
                assert error < 2e-3, (step, name, error)


@pytest.mark.parametrize("name", ["powersgd", "alternating", "batched", "int8", "topk", "adaptive"])
@pytest.mark.parametrize("options", DDP_OPTIONS, **ids_of_options)
@pytest.mark.ranks(2, 3)
def test_nothing_is_lost(name: str, options: dict[str, Any]) -> None:
    """What went into the mean and what the ranks still hold is all that they put in, at each step.

    In every layout of buckets that DDP takes, before and after it builds them anew.
    """
    ddp, at_work = attached(HOOKS[name], **options)
    owed = {name: torch.zeros_like(r).double() for name, r in residuals(at_work).items()}
    alone = net()
    for step in range(4):
        alone.zero_grad()
        backward(alone, step)
        ddp.zero_grad()
        backward(ddp, step)
        mine, applied, left = dict(alone.named_parameters()), gradients(ddp), residuals(at_work)
        for name in owed:
            put_in = sum_over_ranks(mine[name].grad) / dist.get_world_size()
            now = sum_over_ranks(left[name])
            assert_close(
                applied[name].double() + now,
                owed[name] + put_in,
                (step, name),
                rtol=1e-5,
                atol=1e-6,
            )
            owed[name] = now
        # Gradients of equal elements need no more than two bits.
        assert sum(bool(now.abs().max() > 0) for now in owed.values()) >= len(owed) - 1, step


@pytest.mark.ranks(2)
def test_powersgd_is_exact_for_gradients_of_low_rank() -> None:
    """One sample a rank gives matrices of rank 1, so their mean has rank 2."""
    ddp = DDP(nn.Linear(64, 64))
    plain = DDP(nn.Linear(64, 64))
    plain.load_state_dict(ddp.state_dict())
    q7x2.attach(ddp, q7x2.PowerSGD(rank=2, start_iter=0, factors="fp32"))
    for step in range(3):
        x, _ = batch(dist.get_rank(), step)
        for model in (ddp, plain):
            model.zero_grad()
            model(x[:1]).square().sum().backward()
        error = (ddp.module.weight.grad - plain.module.weight.grad).norm()
        assert error < 1e-5 * plain.module.weight.grad.norm()


@pytest.mark.ranks(2)
def test_gradients_of_zero_are_survived() -> None:
    """Zero matrices have no directions; the next step's gradients must get through again."""
    ddp, _ = attached(q7x2.PowerSGD(rank=2, start_iter=0))
    for factor in (0.0, 0.0, 1.0):
        ddp.zero_grad()
        backward(ddp, 0, scale=factor)
        for name, gradient in gradients(ddp).items():
            if gradient.numel():
                assert gradient.isfinite().all(), name
                assert bool(gradient.abs().max() > 0) == (factor > 0), name


@pytest.mark.parametrize("name", ["powersgd", "alternating", "batched"])
@pytest.mark.ranks(2)
def test_a_matrix_that_no_rank_uses_keeps_its_basis(name: str) -> None:
    """Later steps go on from the directions that its gradients had."""
    ddp, hook = attached(HOOKS[name], nn.Linear(64, 64, bias=False))

    def give(factor: float) -> dict[str, torch.Tensor]:
        ddp.zero_grad()
        x, _ = batch(dist.get_rank(), 0)
        (ddp(x).sum() * factor).backward()
        state = hook.state_dict()["shared"]
        if name == "batched":
            return torch.load(io.BytesIO(state["basis_by_bucket"]["all"]))
        return {kind: state[kind]["weight"] for kind in ("basis", "other_basis") if kind in state}

    for _ in range(4):  # an even number: with `alternating`, both sides have had their turns
        before = give(1.0)
    for _ in range(2):
        after = give(0.0)
    for key, basis in before.items():
        assert_bits(after[key], basis, key)


@pytest.mark.ranks(2)
def test_ranks_by_name_and_bytes_by_the_formula() -> None:
    hook = q7x2.PowerSGD(rank={"layers.*.weight": 2, "extra.weight": 3}, start_iter=0)
    ddp, at_work = attached(hook)
    before = at_work.stats.message_bytes
    backward(ddp, 0)
    whole = sum(
        p.numel()
        for name, p in ddp.module.named_parameters()
        if not (name.endswith("weight") and name.startswith(("layers", "extra")))
    )
    thin = 4 * 2 * (64 + 64) + 3 * (64 + 64)
    assert at_work.stats.message_bytes - before == 4 * whole + 2 * thin
    bases = at_work.state_dict()["shared"]["basis"]
    assert {name: b.shape[1] for name, b in bases.items()} == {
        **{f"layers.{i}.weight": 2 for i in range(4)},
        "extra.weight": 3,
    }


@pytest.mark.ranks(2)
def test_alternating_sends_half() -> None:
    sent = []
    for alternating in (False, True):
        options = q7x2.PowerSGD(rank=2, alternating=alternating, start_iter=0)
        ddp, hook = attached(options, nn.Linear(64, 64))
        ddp(torch.ones(1, 64)).sum().backward()
        sent.append(hook.stats.message_bytes)
    assert sent == [4 * 64 + 2 * 2 * 128, 4 * 64 + 2 * 128]


@pytest.mark.ranks(2)
def test_factors_of_16_bits_send_half_and_lose_what_their_rounding_does() -> None:
    results, sent = {}, {}
    for factors in ("fp32", "bf16", "fp16"):
        torch.manual_seed(0)
        options = q7x2.PowerSGD(rank=2, factors=factors, start_iter=0)
        ddp, hook = attached(options, nn.Linear(64, 64, bias=False))
        ddp(torch.randn(2, 64)).square().sum().backward()
        results[factors], sent[factors] = ddp.module.weight.grad, hook.stats.message_bytes
    exact = results["fp32"]
    assert 0 < (results["bf16"] - exact).norm() < 2**-7 * exact.norm()
    assert 0 < (results["fp16"] - exact).norm() < 2**-10 * exact.norm()
    assert sent == {"fp32": 4 * 256, "bf16": 2 * 256, "fp16": 2 * 256}


@pytest.mark.ranks(2)
def test_full_precision_at_first_by_name_and_in_bursts() -> None:
    plain = DDP(net())
    hook = q7x2.PowerSGD(rank=1, start_iter=2, burst_every=3, full_precision=["layers.1.*"])
    ddp, at_work = attached(hook)
    for step in range(8):
        whole = step < 2 or (step - 2) % 3 == 2
        owed = {n: sum_over_ranks(r) for n, r in residuals(at_work).items()}
        assert "layers.1.weight" not in owed
        for model in (plain, ddp):
            model.zero_grad()
            backward(model, step)
        expected = gradients(plain)
        for name, gradient in gradients(ddp).items():
            if name in owed and whole:  # with all that was held back
                assert_close(
                    gradient.double(),
                    expected[name] + owed[name],
                    (step, name),
                    rtol=1e-5,
                    atol=1e-6,
                )
            elif name.startswith("layers.") and name in owed:
                assert (gradient - expected[name]).norm() > 1e-3 * gradient.norm(), (step, name)
            elif whole and step < 2:
                assert_bits(gradient, expected[name], (step, name))
            elif name not in owed:
                assert_close(gradient, expected[name], (step, name), rtol=1e-5, atol=1e-7)
        if whole:
            assert all(r.abs().max() == 0 for r in residuals(at_work).values())


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.ranks(1)
def test_wrong_arguments() -> None:
    ddp = DDP(net())
    with pytest.raises(TypeError, match="needs a DistributedDataParallel, got Net"):
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
    with pytest.raises(RuntimeError, match="can only be called once"):
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


def _lose_a_peer() -> str:
    ddp, _ = attached(q7x2.PowerSGD(rank=2, start_iter=0), **SMALL_BUCKETS)
    backward(ddp, 0)
    if dist.get_rank() == 1:
        time.sleep(60)
    try:
        backward(ddp, 1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing happened"


@pytest.mark.beyond("gloo", "waits for its time-out")
def test_a_peer_that_dies_ends_the_backward(new_pool: Any, backend: str) -> None:
    import signal

    import harness

    pool = new_pool(2)
    pool.start(_lose_a_peer, harness.GroupSpec(backend=backend))
    time.sleep(3)
    pool.signal(1, signal.SIGKILL)
    outcomes = pool.collect(stop_on_failure=False)
    assert outcomes[1].kind == "died"
    assert "rank 1" in outcomes[0].value, outcomes[0]
