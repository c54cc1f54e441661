"""K-FAC on real ranks: equal replicas, hand-written Fisher matrices, owners, state."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import attached
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_same_on_all_ranks, flat

PLAIN: dict[str, Any] = {"momentum": 0.0, "kl_clip": None, "inverses_every": 1}
IMAGES, CLASSES = 6, 4


def net(seed: int = 0) -> nn.Sequential:
    """A convolution with stride and uneven padding, an in-place activation, no bias at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=2, padding=(1, 0)),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.LayerNorm(27),
            nn.Linear(27, 8),
            nn.Tanh(),
            nn.Linear(8, CLASSES, bias=False),
        )


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(IMAGES, 2, 5, 6, generator=generator)
    return x, torch.randint(CLASSES, (IMAGES,), generator=generator)


def backward(model: nn.Module, step: int, scale: float = 1.0) -> None:
    x, y = batch(dist.get_rank(), step)
    (nn.functional.cross_entropy(model(x), y) * scale).backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


# ---- a hand-written reference --------------------------------------------------------------------


def patches(x: torch.Tensor) -> torch.Tensor:
    """The inputs of the convolution of `net` at each of its positions: [images, 9, 12]."""
    padded = nn.functional.pad(x, (0, 0, 1, 1))
    return torch.stack(
        [
            padded[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2].flatten(1)
            for i in range(3)
            for j in range(3)
        ],
        1,
    )


def factors_by_hand(model: nn.Sequential, step: int, world_size: int) -> dict[int, Any]:
    """A and G of each layer, from gradients of one sample at a time, over all ranks' batches."""
    sums: dict[int, Any] = {}
    for rank in range(world_size):
        for x, y in zip(*batch(rank, step), strict=True):
            seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
            value = x.double().unsqueeze(0)
            for index, module in enumerate(model):
                before = value
                value = module(value.clone())
                if index in (0, 4, 6):
                    value.retain_grad()
                    seen[index] = before, value
            nn.functional.cross_entropy(value, y.unsqueeze(0)).backward()
            for index, (a, out) in seen.items():
                assert out.grad is not None
                rows, g = (
                    (patches(a)[0], out.grad[0].flatten(1).t()) if index == 0 else (a, out.grad)
                )
                if index != 6:
                    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
                old = sums.get(index, (0, 0))
                sums[index] = old[0] + rows.t() @ rows, old[1] + g.t() @ g / len(g)
    return {
        index: tuple(factor.detach() / (IMAGES * world_size) for factor in pair)
        for index, pair in sums.items()
    }


@pytest.mark.ranks(2)
def test_a_step_solves_the_damped_kronecker_system(world_size: int) -> None:
    model, damping, lr = net(), 0.01, 0.5
    ddp = DDP(model)
    by_hand = copy.deepcopy(model).double()
    factors = factors_by_hand(by_hand, 0, world_size)
    optimizer = q7x2.optim.KFAC(ddp, lr, damping=damping, **PLAIN)
    assert optimizer.layers == ["0", "4", "6"]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    backward(ddp, 0)
    optimizer.step()
    for index, (a, g) in factors.items():
        pi = math.sqrt(float(a.trace() / len(a)) / float(g.trace() / len(g)))
        damped_a = a + pi * math.sqrt(damping) * torch.eye(len(a))
        damped_g = g + math.sqrt(damping) / pi * torch.eye(len(g))
        matrix = model[index].weight.grad.double().flatten(1)
        if index != 6:
            matrix = torch.cat([matrix, model[index].bias.grad.double().unsqueeze(1)], 1)
        solved = torch.linalg.solve(torch.kron(damped_g, damped_a), matrix.flatten())
        solved = solved.view_as(matrix)
        step = (before[f"{index}.weight"] - model[index].weight.detach()).double().flatten(1) / lr
        if index != 6:
            moved = before[f"{index}.bias"] - model[index].bias.detach()
            step = torch.cat([step, moved.double().unsqueeze(1) / lr], 1)
        torch.testing.assert_close(step, solved, rtol=1e-4, atol=1e-5 * float(solved.abs().max()))
    norm = model[3]
    assert_bits(norm.bias.detach(), before["3.bias"] - lr * norm.bias.grad, "plain SGD")


@pytest.mark.ranks(2)
def test_accumulated_gradients_and_a_scaled_loss_give_the_same_factors() -> None:
    whole, parts = net(), net()
    x, y = batch(dist.get_rank(), 0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizers = [
        q7x2.optim.KFAC(whole, 0.1, **PLAIN),
        q7x2.optim.KFAC(parts, 0.1, scaler=scaler, **PLAIN),
    ]
    nn.functional.cross_entropy(whole(x), y).backward()
    for half in (slice(0, 3), slice(3, 6)):
        scaler.scale(nn.functional.cross_entropy(parts(x[half]), y[half]) / 2).backward()
    scaler.unscale_(optimizers[1])
    for optimizer, model in zip(optimizers, (whole, parts), strict=True):
        for p in model.parameters():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        optimizer.step()
    models = whole, parts
    for index in (0, 4, 6):
        for key in ("input_factor", "output_factor"):
            states = [
                o.state[m[index].weight][key] for o, m in zip(optimizers, models, strict=True)
            ]
            torch.testing.assert_close(*states)
    torch.testing.assert_close(flat(whole), flat(parts), rtol=1e-4, atol=1e-6)


# ---- replicas, hooks, bytes ----------------------------------------------------------------------


@pytest.mark.beyond("gloo", "has no hooks")
@pytest.mark.ranks(3)
def test_replicas_share_bits_with_a_hook_and_a_tolerance(world_size: int) -> None:
    ddp, _ = attached(q7x2.Quantize("int8"), net())
    optimizer = q7x2.optim.KFAC(
        ddp, 0.05, inverses_every=2, factors_every=2, tolerance=0.02, weight_decay=1e-3
    )
    losses = []
    for step in range(24):
        optimizer.zero_grad()
        x, y = batch(dist.get_rank(), step % 2)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert_same_on_all_ranks([flat(ddp)])
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    stats = optimizer.stats
    assert stats.steps == 24
    assert stats.inverses + stats.kept_inverses == 6 * 12
    assert 0 < stats.kept_inverses < 6 * 11
    # Triangles of both factors of three layers, and one count per layer.
    triangles = sum(n * (n + 1) // 2 for n in (13, 3, 28, 8, 8, 4))
    assert stats.factor_bytes == 12 * 4 * (triangles + 3)
    assert 4 * triangles <= stats.inverse_bytes < 12 * 4 * triangles


def test_large_inverses_are_divided_among_the_ranks() -> None:
    from q7x2.optim.kfac_exchange import owners_of, pack, triangle, unpack

    assert owners_of([10, 100, 90, 50, 50], 2) == [1, 0, 1, 1, 1]
    assert owners_of([3, 3], 4) == [0, 1]
    matrices = [torch.randn(n, n) for n in (1, 4, 3)]
    matrices = [matrix + matrix.t() for matrix in matrices]
    out = torch.empty(sum(triangle(len(matrix)) for matrix in matrices))
    pack(matrices, out)
    for matrix, same in zip(matrices, unpack(out, [1, 4, 3]), strict=True):
        assert_bits(same, matrix)


@pytest.mark.ranks(2)
def test_a_layer_that_no_rank_uses_takes_steps_of_sgd() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)})
    optimizer = q7x2.optim.KFAC(model, 0.1, **PLAIN)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(7))
    if dist.get_rank() == 0:  # the other one has no statistics
        model["used"](x).square().mean().backward()
    else:
        model["used"].weight.grad = torch.zeros(2, 3)
        model["used"].bias.grad = torch.zeros(2)
    model["unused"].weight.grad = torch.ones(2, 3)
    for p in model["used"].parameters():
        dist.all_reduce(p.grad)
    with torch.no_grad():
        for p in model.parameters():
            dist.broadcast(p, 0)
    before = model["unused"].weight.detach().clone()
    optimizer.step()
    assert_bits(model["unused"].weight.detach(), before - 0.1)
    expected = torch.cat([x, torch.ones(5, 1)], 1)
    torch.testing.assert_close(
        optimizer.state[model["used"].weight]["input_factor"], expected.t() @ expected / 5
    )
    assert_same_on_all_ranks([flat(model)])


# ---- state and errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.ranks(2)
def test_training_goes_on_from_a_state_with_the_same_bits(dtype: torch.dtype) -> None:
    def made(model: nn.Module) -> tuple[DDP, q7x2.optim.KFAC]:
        ddp = DDP(model)
        return ddp, q7x2.optim.KFAC(ddp, 0.05, inverses_every=3, factors_every=2, tolerance=0.01)

    def trained(ddp: DDP, optimizer: q7x2.optim.KFAC, steps: range) -> None:
        for step in steps:
            x, y = batch(dist.get_rank(), step)
            nn.functional.cross_entropy(ddp(x.to(dtype)).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    ddp, optimizer = made(net().to(dtype))
    trained(ddp, optimizer, range(4))
    saved = copy.deepcopy((ddp.module.state_dict(), optimizer.state_dict()))
    trained(ddp, optimizer, range(4, 8))
    other = net(seed=1).to(dtype)
    other.load_state_dict(saved[0])
    again, resumed = made(other)
    resumed.load_state_dict(saved[1])
    assert resumed.steps == 4
    assert resumed.state[other[4].weight]["input_inverse"].dtype == torch.float32
    trained(again, resumed, range(4, 8))
    assert_bits(flat(again), flat(ddp))


@pytest.mark.ranks(2)
def test_a_factor_that_is_not_finite_raises_on_all_ranks_and_changes_nothing() -> None:
    model = net()
    optimizer = q7x2.optim.KFAC(DDP(model), 0.1)
    before = flat(model)
    backward(model, 0, scale=math.inf if dist.get_rank() == 1 else 1.0)
    with pytest.raises(FloatingPointError, match="output factor of layer '0' has Inf or NaN"):
        optimizer.step()
    assert_bits(flat(model), before)
    assert optimizer.steps == 0
    optimizer.zero_grad()
    train(model, optimizer, range(1, 2))
    assert optimizer.steps == 1


@pytest.mark.ranks(2)
def test_mistakes_raise_when_it_is_made() -> None:
    model = net()
    for error, options in (
        ("damping must be positive", {"damping": 0.0}),
        ("lr and weight_decay must not be negative", {"lr": -1.0}),
        ("tolerance must be at least 0 and less than 1", {"tolerance": 1.0}),
        ("kl_clip must be positive", {"kl_clip": 0.0}),
        ("no module's name matches 'head", {"exclude": ["head*"]}),
        ("no Linear or Conv2d layer", {"exclude": ["*"]}),
        ("params must be parameters of model", {"params": list(net().parameters())}),
        ("the same KFAC, but rank 0", {"inverses_every": 10 + dist.get_rank()}),
    ):
        with pytest.raises(ValueError, match=error):
            q7x2.optim.KFAC(model, **{"lr": 0.1} | options)
    with pytest.raises(TypeError, match="model must be of type Module"):
        q7x2.optim.KFAC(list(model.parameters()), 0.1)  # type: ignore[arg-type]
