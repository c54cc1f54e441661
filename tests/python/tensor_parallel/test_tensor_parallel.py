"""Tensor parallelism with overlap: torch's styles as reference, exact sums, schedules, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from fsdp_training import mesh_over
from pairs import each_value
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from values import assert_bits, assert_close

BATCH, ROWS, WIDTH, HIDDEN = 2, 4, 8, 16  # ROWS of the sequence per rank
Tensors = dict[str, torch.Tensor]


class MLP(nn.Module):
    def __init__(self, bias: bool, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(WIDTH, HIDDEN, bias)
        self.down = nn.Linear(HIDDEN, WIDTH, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


def mlp(whole: bool, dtype: torch.dtype = torch.float32, bias: bool = True) -> MLP:
    """With whole numbers, all sums of a step are exact, in bfloat16, too."""
    generator = torch.Generator().manual_seed(1)
    model = MLP(bias, torch.relu if whole else torch.tanh).to(dtype)
    for p in model.parameters():
        p.data = numbers(p.shape, generator, whole).to(dtype)
    return model


def numbers(shape: Any, generator: torch.Generator, whole: bool) -> torch.Tensor:
    if whole:
        return torch.randint(-1, 2, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) / 4


def with_overlap(model: nn.Module, mesh: DeviceMesh, chunks: int | None, **options: Any) -> Any:
    plan: dict[str, Any] = {
        "up": q7x2.tensor_parallel.ColwiseOverlap(chunks=chunks, **options),
        "down": q7x2.tensor_parallel.RowwiseOverlap(chunks=chunks, **options),
    }
    return parallelize_module(model, mesh, plan)


def without_overlap(model: nn.Module, mesh: DeviceMesh) -> Any:
    plan: dict[str, Any] = {
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(model, mesh, plan)


def shard_of(whole: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def step(model: nn.Module, whole: bool, dtype: torch.dtype, seed: int = 2) -> Tensors:
    """Output, gradients of the input and of all parameters."""
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, ROWS * dist.get_world_size(), WIDTH)
    x = shard_of(numbers(shape, generator, whole).to(dtype)).requires_grad_()
    dy = shard_of(numbers(shape, generator, whole).to(dtype))
    y = model(x)
    y.backward(dy)
    assert x.grad is not None
    found = {"y": y.detach(), "x": x.grad}
    for name, p in model.named_parameters():
        found[name] = p.grad.full_tensor()
        p.grad = None
    return found


# ---- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "backend"), each_value([torch.float32, torch.bfloat16], ["q7x2", "gloo"])
)
@pytest.mark.ranks(2, 4)
def test_exact_sums_have_the_bits_of_the_run_without_overlap(
    dtype: torch.dtype, backend: str
) -> None:
    mesh = mesh_over(backend)
    for bias in (True, False):
        expected = step(without_overlap(mlp(True, dtype, bias), mesh), True, dtype)
        for chunks in (1, 3, 100, None):
            model = with_overlap(mlp(True, dtype, bias), mesh, chunks)
            for name, value in step(model, True, dtype).items():
                assert_bits(value, expected[name], (name, bias, chunks))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.ranks(2, 4)
def test_other_sums_are_equal_to_rounding(dtype: torch.dtype, rtol: float) -> None:
    mesh = mesh_over("q7x2")
    expected = step(without_overlap(mlp(False, dtype), mesh), False, dtype)
    found = step(with_overlap(mlp(False, dtype), mesh, 2), False, dtype)
    for name, value in found.items():
        assert_close(value, expected[name], name, rtol, rtol * float(expected[name].abs().max()))


@pytest.mark.ranks(4)
def test_sums_are_made_in_rank_order_and_rounded_once() -> None:
    mesh = mesh_over("q7x2")
    cases = [
        (torch.float32, [1e8, 1.0, -1e8, 1.0], 1.0),  # in another order 2 or 0
        (torch.bfloat16, [256.0, 1.0, 1.0, -256.0], 2.0),  # in bfloat16 256 + 1 = 256
    ]
    for dtype, weights, expected in cases:
        for chunks in (1, 2):
            linear = nn.Linear(4, 1, bias=False).to(dtype)
            linear.weight.data = torch.tensor([weights], dtype=dtype)
            layer = parallelize_module(
                linear, mesh, q7x2.tensor_parallel.RowwiseOverlap(chunks=chunks)
            )
            y = layer(torch.ones(1, 8, 1, dtype=dtype))
            assert y.tolist() == [[[expected], [expected]]], (dtype, chunks)


@pytest.mark.ranks(4, fresh=True)
def test_training_with_fsdp2_over_the_other_dimension_goes_the_same_way() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "tensor"))

    def train(model: nn.Module) -> list[torch.Tensor]:
        fully_shard(model, mesh=mesh["shards"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        outputs = []
        for number in range(4):
            generator = torch.Generator().manual_seed(10 * number + mesh.get_local_rank("shards"))
            x = torch.randn(BATCH, 2 * ROWS, WIDTH, generator=generator)
            y = model(x.chunk(2, 1)[mesh.get_local_rank("tensor")])
            y.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            outputs.append(y.detach())
        return outputs

    expected = train(without_overlap(mlp(False), mesh["tensor"]))
    model = with_overlap(mlp(False), mesh["tensor"], 2)
    for number, (y, other) in enumerate(zip(train(model), expected, strict=True)):
        assert_close(y, other, number, 1e-3, 1e-4)
    assert model.up.overlap.calls == 8
    assert model.up.weight.device_mesh.ndim == 2


# ---- inputs and outputs --------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_dtensors_negative_dimensions_and_weights_that_are_distributed(world_size: int) -> None:
    mesh = mesh_over("q7x2")
    plain = nn.Linear(WIDTH, HIDDEN)
    made = copy.deepcopy(plain)
    for name, p in plain.named_parameters():
        distributed = distribute_tensor(p.detach(), mesh, [Shard(0)])
        made.register_parameter(name, nn.Parameter(distributed))
    for p in plain.parameters():
        dist.broadcast(p.data, 0)
    style = q7x2.tensor_parallel.ColwiseOverlap(
        input_layouts=Shard(-2), use_local_output=False, chunks=3
    )
    layer = parallelize_module(made, mesh, style)
    generator = torch.Generator().manual_seed(3)
    for shape in ((6, WIDTH), (3, 4, WIDTH), (2, 2, 2, WIDTH)):
        x = torch.randn(shape, generator=generator)
        expected = plain(x)
        given = distribute_tensor(x, mesh, [Shard(len(shape) - 2)]).requires_grad_()
        y = layer(given)
        assert isinstance(y, DTensor)
        assert y.placements == (Shard(len(shape) - 1),)
        assert_close(y.full_tensor(), expected, shape)
        y.to_local().sum().backward()
        assert given.grad is not None
        ones = torch.ones_like(expected) @ plain.weight
        assert_close(given.grad.full_tensor(), ones.detach(), shape)


@pytest.mark.ranks(2)
def test_frozen_parameters_no_grad_and_autocast() -> None:
    mesh = mesh_over("q7x2")
    model, reference = with_overlap(mlp(True), mesh, 2), without_overlap(mlp(True), mesh)
    x = shard_of(numbers((BATCH, 2 * ROWS, WIDTH), torch.Generator().manual_seed(4), True))
    for each in (model, reference):
        each.up.weight.requires_grad_(False)
        each(x).sum().backward()
    assert model.up.weight.grad is None
    for name in ("up.bias", "down.weight", "down.bias"):
        grads = [each.get_parameter(name).grad for each in (model, reference)]
        assert_bits(grads[0].full_tensor(), grads[1].full_tensor(), name)
    with torch.no_grad():
        assert_bits(model(x), reference(x))
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        assert_bits(y, reference(x).bfloat16())


# ---- statistics ----------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_a_layer_says_what_it_chose_and_how_long_it_waited() -> None:
    model = with_overlap(mlp(False), mesh_over("q7x2"), None)
    assert "not yet chosen" in str(model.up.overlap)
    step(model, False, torch.float32)
    step(model, False, torch.float32)
    for overlap in (model.up.overlap, model.down.overlap):
        assert [each.chunks for each in overlap.candidates] != []
        assert {each.chunks for each in overlap.candidates} == {1, 2, 4}  # of 4 rows
        assert overlap.chunks == overlap.candidates[0].chunks
        assert overlap.message_bytes == BATCH * ROWS * WIDTH * 4
        assert overlap.calls == 4
        assert 0 < overlap.waited_seconds < overlap.seconds
        assert f"2 ranks, {overlap.chunks} chunks per shard of 256 B" in str(overlap)
        assert "waited for messages" in str(overlap)
    everybody: list[Any] = [None] * 2
    dist.all_gather_object(everybody, model.up.overlap.candidates)
    assert everybody[0] == everybody[1]
    assert f"chunks={model.up.overlap.chunks}" in repr(model.up)


# ---- mistakes and failures -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda: q7x2.tensor_parallel.ColwiseOverlap(input_layouts=Replicate()),
            "input_layouts must be Shard",
        ),
        (
            lambda: q7x2.tensor_parallel.ColwiseOverlap(input_layouts=Shard(-1)),
            "input_layouts must be Shard",
        ),
        (
            lambda: q7x2.tensor_parallel.ColwiseOverlap(output_layouts=Replicate()),
            "output_layouts must be Shard",
        ),
        (
            lambda: q7x2.tensor_parallel.RowwiseOverlap(output_layouts=Replicate()),
            "output_layouts must be Shard",
        ),
        (
            lambda: q7x2.tensor_parallel.RowwiseOverlap(input_layouts=Shard(0)),
            "input_layouts must be Shard",
        ),
        (lambda: q7x2.tensor_parallel.RowwiseOverlap(chunks=0), "chunks must be at least 1"),
    ],
)
def test_styles_are_checked(make: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make()


@pytest.mark.ranks(2)
def test_modules_and_meshes_are_checked() -> None:
    mesh = mesh_over("q7x2")
    for style in (q7x2.tensor_parallel.ColwiseOverlap(), q7x2.tensor_parallel.RowwiseOverlap()):
        with pytest.raises(TypeError, match=r"needs a torch.nn.Linear, got LayerNorm"):
            parallelize_module(nn.LayerNorm(4), mesh, style)
        with pytest.raises(ValueError, match="_features=5 cannot be divided equally"):
            parallelize_module(nn.Linear(5, 5), mesh, style)
    done = without_overlap(mlp(True), mesh)
    with pytest.raises(ValueError, match="apply ColwiseOverlap instead of it"):
        parallelize_module(done.up, mesh, q7x2.tensor_parallel.ColwiseOverlap())
    with pytest.raises(ValueError, match="must be a plain tensor, or a DTensor of"):
        parallelize_module(done.up, mesh, q7x2.tensor_parallel.RowwiseOverlap())


@pytest.mark.ranks(2)
def test_wrong_inputs_raise_on_all_ranks_and_change_nothing() -> None:
    mesh, rank = mesh_over("q7x2"), dist.get_rank()
    x = torch.ones(BATCH, ROWS, WIDTH)
    uneven = with_overlap(mlp(True), mesh, 2)
    with pytest.raises(ValueError, match=r"rank 0 has shape=.* where rank 1 .* has shape="):
        uneven.up(x[:, : ROWS - rank])
    with pytest.raises(ValueError, match="must have 8 features" if rank else "rank 1 of the group"):
        uneven.up(x[..., : WIDTH - rank])
    model = with_overlap(mlp(True), mesh, 2)
    for _ in range(2):  # before and after the first forward
        for call, error in (
            (lambda: model.up(x[0]), "the sequence is dimension 1, but the input has shape"),
            (lambda: model.up(x.double()), r"the input is torch.float64 on cpu, the weight"),
            (lambda: model.up(distribute_tensor(x, mesh, [Shard(0)])), "a DTensor of S"),
            (lambda: model.up(distribute_tensor(x[:, :3], mesh, [Shard(1)])), "divided equally"),
            (lambda: model.down(x[:, :3]), "a sequence of 3 cannot be divided equally"),
        ):
            with pytest.raises(ValueError, match=error):
                call()
        assert model(x).shape == x.shape


@pytest.mark.parametrize("backend", ["q7x2", "gloo"])
@pytest.mark.ranks(2)
def test_nobody_hangs_if_a_rank_raises(backend: str) -> None:
    """Rank 1 leaves before its backward, so that rank 0 waits until its time is over.

    Other groups work before and after it. DTensor keeps what it has worked out for a mesh, and
    takes it for each equal one: so the mesh that must work comes first.
    """
    before = step(with_overlap(mlp(False), mesh_over(backend), 2), False, torch.float32)
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=2))
    model = with_overlap(mlp(False), DeviceMesh.from_group(group, "cpu"), 2)
    y = model(torch.ones(BATCH, ROWS, WIDTH))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError):
            y.sum().backward()
    dist.barrier()
    after = step(with_overlap(mlp(False), mesh_over(backend), 2), False, torch.float32)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert_bits(after[name], value)
