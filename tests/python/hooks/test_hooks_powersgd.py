"""PowerSGD: agreement with PyTorch's hook, bytes by the formula, bases, bursts, overflows."""

from __future__ import annotations

import io
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import (
    HOOKS,
    Net,
    attached,
    backward,
    batch,
    exact,
    gradients,
    net,
    residuals,
    sum_over_ranks,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import FEW, assert_bits, assert_close


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
@pytest.mark.ranks(*FEW)
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
def test_a_reset_finds_a_direction_that_a_warm_basis_cannot_see() -> None:
    """Power iteration keeps to what its basis is not orthogonal to, whatever is large beside it."""
    small, large = torch.zeros(64, 64), torch.zeros(64, 64)
    small[:32, :32] = torch.outer(torch.arange(1.0, 33), torch.ones(32))
    large[32:, 32:] = 1000
    results = {}
    for reset_every in (None, 4):
        options = q7x2.PowerSGD(
            rank=1, start_iter=0, use_error_feedback=False, factors="fp32", reset_every=reset_every
        )
        ddp, hook = attached(options, nn.Linear(64, 64, bias=False))
        reduced, bases = [], []
        for step in range(8):
            ddp.zero_grad()
            gradient = small if step < 3 else small + large
            (ddp(torch.eye(64)).t() * gradient).sum().backward()
            reduced.append(ddp.module.weight.grad.clone())
            bases.append(hook.state_dict()["shared"]["basis"]["weight"])
        results[reset_every] = reduced
        assert bases[2][32:].norm() < 1e-6
    for step, gradient in enumerate(results[None]):
        assert_close(gradient, small, step, rtol=1e-4, atol=1e-3)
    for step in range(4):  # warm, as without a reset
        assert_bits(results[4][step], results[None][step], step)
    for step in range(5, 8):
        assert_close(results[4][step][32:, 32:], large[32:, 32:], step, rtol=1e-3, atol=1.0)


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
