"""Communication hooks: what they compute, whatever DDP does with its buckets."""

from __future__ import annotations

import gc
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
from hook_matrix import LAYOUTS, every_hook
from hook_training import (
    HOOKS,
    SMALL_BUCKETS,
    attached,
    backward,
    batch,
    gradients,
    net,
    parameters_of,
    residuals,
    sgd,
    sum_over_ranks,
    train,
)
from pairs import nightly
from q7x2.hooks.runner import make_runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close, assert_same_on_all_ranks

MORE = "three ranks do more of the same; two ranks run in the other tests of hooks"

# --- dense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.ranks(nightly(1, MORE), nightly(2, MORE), 3)
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


@every_hook("replicas")
@pytest.mark.ranks(nightly(2, MORE), 3)
def test_replicas_stay_the_same_bits_and_learn(hook: Any, options: dict[str, Any]) -> None:
    ddp, at_work = attached(hook, **options)
    first = last = 0.0
    optimizer = sgd(ddp, hook)
    for step in range(10):  # the last one has the batch of the first
        optimizer.zero_grad()
        x, y = batch(dist.get_rank(), step % 3)
        loss = nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < 0.95 * first
    assert_same_on_all_ranks(parameters_of(ddp))
    assert at_work.stats.steps == 10


@every_hook("delays")
@pytest.mark.ranks(2, nightly(3, MORE))
def test_delays_do_not_change_a_bit(hook: Any, options: dict[str, Any]) -> None:
    """Gradients are ready in other order and at other times on every rank, with many buckets."""
    results = []
    for delays in (False, True):
        ddp, at_work = attached(hook, **options)
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

    if dist.get_rank() == 1:
        dist.barrier()  # rank 0 has its callback before it has the sum
        kept[0].reduce_bucket(0, [0], torch.ones(8), True).wait()
        return
    future = kept[0].reduce_bucket(0, [0], torch.ones(8), True).then(drop)
    dist.barrier()
    last_is_ours.set()
    assert future.wait().tolist() == [1.0] * 8
    assert weak() is None


@pytest.mark.ranks(2)
def test_what_is_in_flight_fails_when_the_hook_goes() -> None:
    runner = make_runner(q7x2.Allreduce(), None, [("weight", torch.zeros(8))])
    if dist.get_rank() == 0:  # rank 1 never calls
        future = runner.reduce_bucket(0, [0], torch.ones(8), True)
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
    assert hook.steps == 3
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])


@every_hook("conservation")
@pytest.mark.ranks(nightly(2, MORE), 3)
def test_nothing_is_lost(hook: Any, options: dict[str, Any]) -> None:
    """What went into the mean and what the ranks still hold is all that they put in, at each step.

    In every layout of buckets that DDP takes, before and after it builds them anew.
    """
    ddp, at_work = attached(hook, **options)
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
