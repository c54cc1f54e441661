"""The functional compressed collectives: operators, results, gradients, and torch.compile."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from unittest import mock

import pytest
import q7x2
import torch
import torch._dynamo
import torch.distributed as dist
from q7x2.functional import operators
from torch import Tensor, nn

pytestmark = [
    pytest.mark.beyond("gloo", "codecs are q7x2's"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Form = Callable[..., Tensor]


def form(name: str) -> Form:
    found: Form = getattr(q7x2.functional, name)
    return found


def noise(rows: int, rank: int | None = None) -> Tensor:
    seed = dist.get_rank() if rank is None else rank
    return torch.randn(rows, 40, generator=torch.Generator().manual_seed(seed))


def expected(name: str, inputs: list[Tensor]) -> Tensor:
    """What an exact collective gives to this rank, by the definition."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.stack(inputs).sum(0)
    if name == "all_reduce":
        return total
    if name == "all_gather":
        return torch.cat(inputs)
    if name == "reduce_scatter":
        return total.chunk(size)[rank]
    return torch.cat([tensor.chunk(size)[rank] for tensor in inputs])


BACK = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


@pytest.mark.ranks(2, 3)
def test_results_and_gradients(world_size: int) -> None:
    for name in NAMES:
        for codec, allowed in (("none", 1e-6), ("int8", 0.02)):
            tensor = noise(2 * world_size).requires_grad_()
            result = form(name)(tensor, codec=codec)
            wanted = expected(name, [noise(2 * world_size, r) for r in range(world_size)])
            assert (result - wanted).norm() <= allowed * wanted.norm(), (name, codec)
            assert codec == "none" or not torch.equal(result, wanted), name
            assert torch.equal(tensor.detach(), noise(2 * world_size)), name
            rows = len(wanted)
            result.backward(noise(rows, 10 + dist.get_rank()))
            grads = [noise(rows, 10 + rank) for rank in range(world_size)]
            back = expected(BACK.get(name, name), grads)
            assert tensor.grad is not None
            assert (tensor.grad - back).norm() <= allowed * back.norm(), (name, codec)


@pytest.mark.ranks(2, 3)
def test_averages_and_exact_gradients(world_size: int) -> None:
    for name in ("all_reduce", "reduce_scatter"):
        tensor = noise(world_size).requires_grad_()
        result = form(name)(tensor, "avg", codec="int8", backward_codec="none")
        wanted = expected(name, [noise(world_size, r) for r in range(world_size)]) / world_size
        assert (result - wanted).norm() <= 0.02 * wanted.norm()
        result.backward(torch.ones_like(result) * (1 + dist.get_rank()))
        ones = [torch.full_like(result, 1.0 + rank) for rank in range(world_size)]
        back = expected(BACK.get(name, name), ones) / world_size
        torch.testing.assert_close(tensor.grad, back)


@pytest.mark.ranks(2, 3)
def test_large_exchange_in_several_messages(world_size: int) -> None:
    values = torch.randn(world_size, 70_001, generator=torch.Generator().manual_seed(3))
    for codec in ("int8", "hadamard+int4:g=128", "fp16"):
        for dtype in (torch.float32, torch.bfloat16):
            mine = values.roll(dist.get_rank(), 0).to(dtype)
            result = q7x2.functional.all_to_all(mine, codec=codec)
            wanted = torch.stack(
                [values.roll(rank, 0)[dist.get_rank()] for rank in range(world_size)]
            )
            assert result.dtype == dtype
            assert (result.float() - wanted).norm() <= 0.25 * wanted.norm(), codec
    empty = q7x2.functional.all_to_all(torch.empty(world_size, 0), codec="int8")
    assert empty.shape == (world_size, 0)


def arguments(name: str, group: str) -> tuple[str, ...]:
    codecs = ("int8", "int8", group)
    return ("sum", *codecs) if name in ("all_reduce", "reduce_scatter") else codecs


@pytest.mark.ranks(2)
def test_opcheck(world_size: int) -> None:
    group = dist.distributed_c10d._get_default_group().group_name
    # It compares results that nobody has waited for.
    with mock.patch.object(operators, "register_work", lambda result, work: work.wait()):
        for name in NAMES:
            tensor = noise(2 * world_size).requires_grad_()
            operator = getattr(torch.ops.q7x2, name).default
            torch.library.opcheck(operator, (tensor, *arguments(name, group)))


def compiles_equal(backend: str) -> None:
    size = dist.get_world_size()
    for name in NAMES:

        def model(tensor: Tensor, name: str = name) -> Tensor:
            return form(name)(tensor * 2, codec="int8").sin() + 1

        eager_input = noise(2 * size).requires_grad_()
        compiled_input = noise(2 * size).requires_grad_()
        torch._dynamo.reset()
        eager = model(eager_input)
        compiled = torch.compile(model, fullgraph=True, backend=backend)(compiled_input)
        if backend == "inductor":  # its sine may differ in the last bit
            torch.testing.assert_close(eager, compiled)
        else:
            assert torch.equal(eager, compiled), name
        eager.sum().backward()
        compiled.sum().backward()
        torch.testing.assert_close(eager_input.grad, compiled_input.grad)


@pytest.mark.ranks(2, 3)
def test_compiled_equals_eager(world_size: int) -> None:
    compiles_equal("aot_eager")


needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++")),
    reason="Inductor needs a C++ compiler for tensors on the CPU",
)


@pytest.mark.nightly("half a minute: Inductor compiles all of them; one is in the test below")
@needs_compiler
@pytest.mark.ranks(2, deadline=240)
def test_compiled_by_inductor(world_size: int) -> None:
    compiles_equal("inductor")


@needs_compiler
@pytest.mark.ranks(2, deadline=240)
def test_inductor_starts_gathers_early(world_size: int) -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    torch.manual_seed(dist.get_rank())
    layers = nn.Sequential(*(GatheredLinear(world_size) for _ in range(3)))
    passes = ["raise_comms", "sink_waits"]
    with config.patch(
        reorder_for_compute_comm_overlap=True, reorder_for_compute_comm_overlap_passes=passes
    ):
        model = torch.compile(layers, fullgraph=True)
        with torch.no_grad():
            result, code = run_and_get_code(model, noise(64, 5))
            torch.testing.assert_close(result, layers(noise(64, 5)))
        losses = losses_of(layers, model)
    calls = re.findall(r"torch\.ops\.(q7x2\.all_gather|_c10d_functional\.wait)\S*\(.*", code[0])
    assert calls == ["q7x2.all_gather"] * 3 + ["_c10d_functional.wait"] * 3
    assert losses[-1] < losses[0], losses


@pytest.mark.ranks(3)
def test_compiled_with_a_smaller_group(world_size: int) -> None:
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return
    torch._dynamo.reset()
    wanted = torch.cat([noise(4, 0), noise(4, 2)])
    for named in (group, group.group_name):

        def model(tensor: Tensor, named: dist.ProcessGroup | str = named) -> Tensor:
            return q7x2.functional.all_gather(tensor, group=named, codec="fp32")

        assert torch.equal(model(noise(4)), wanted)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(noise(4)), wanted)
    dist.destroy_process_group(group)


@pytest.mark.ranks(2)
def test_sizes_do_not_recompile(world_size: int) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def model(tensor: Tensor) -> Tensor:
        for name in NAMES:
            tensor = form(name)(tensor, codec="int8")
        return tensor

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 6, 10, 24):
        assert torch.equal(compiled(noise(rows)), model(noise(rows)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class SplitLinear(nn.Module):
    """Two layers, split between ranks by columns, then by rows: one compressed sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(40, 8), nn.Linear(8, 40, bias=False)

    def forward(self, tensor: Tensor) -> Tensor:
        hidden = self.up(tensor).relu()
        return q7x2.functional.all_reduce(self.down(hidden), codec="int8", backward_codec="none")


class GatheredLinear(nn.Module):
    """A layer whose weight is gathered before each use, as SimpleFSDP does it."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.shard = nn.Parameter(torch.randn(40 // ranks, 40) * 0.1)

    def forward(self, tensor: Tensor) -> Tensor:
        weight = q7x2.functional.all_gather(self.shard, codec="int8")
        return nn.functional.linear(tensor, weight)


def losses_of(layer: nn.Module, model: Callable[[Tensor], Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    losses = []
    for _ in range(30):
        loss = (model(noise(64, 5)) - noise(64, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.ranks(2)
def test_parallel_layers_train(world_size: int) -> None:
    for make in (SplitLinear, lambda: GatheredLinear(world_size)):
        torch._dynamo.reset()
        torch.manual_seed(dist.get_rank())
        eager, layer = make(), make()
        layer.load_state_dict(eager.state_dict())
        model = torch.compile(layer, fullgraph=True, backend="aot_eager")
        losses = losses_of(layer, model)
        assert losses[-1] < 0.9 * losses[0], losses
        assert losses == losses_of(eager, eager)


@pytest.mark.ranks(2, 3)
def test_input_may_change_before_the_wait(world_size: int) -> None:
    group = dist.distributed_c10d._get_default_group().group_name
    rows = 1000 * world_size
    for name in NAMES:
        for codec in ("none", "int8"):
            tensor = noise(rows)
            operator = getattr(torch.ops.q7x2, name)
            chosen = (codec, "none", group)
            result = operator(tensor, *arguments(name, group)[:-3], *chosen)
            tensor.fill_(1e6)
            wanted = form(name)(noise(rows), codec=codec)
            assert torch.equal(operators.wait(result), wanted), (name, codec)


@pytest.mark.ranks(2)
def test_codecs_without_fixed_messages(world_size: int) -> None:
    for codec in ("topk:0.5", "sumint16"):
        total = q7x2.functional.all_reduce(noise(8), codec=codec)
        wanted = expected("all_reduce", [noise(8, rank) for rank in range(world_size)])
        assert (total - wanted).norm() < 0.6 * wanted.norm(), codec
    with pytest.raises(ValueError, match="no messages of its own"):
        q7x2.functional.all_gather(noise(8), codec="sumint16")
    with pytest.raises(ValueError, match="no messages of its own"):
        q7x2.functional.reduce_scatter(noise(8), codec="sumint16")
    part = q7x2.functional.reduce_scatter(noise(8), codec="sumint16", backward_codec="int8")
    assert part.shape == (8 // world_size, 40)


@pytest.mark.ranks(2)
def test_refusals_while_traced(world_size: int) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(tensor: Tensor, codec: str) -> Tensor:
        return q7x2.functional.reduce_scatter(tensor, codec=codec)

    for tensor, codec, said in ((noise(2), "no-such", "no-such"), (noise(3), "int8", "evenly")):
        with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=said):
            model(tensor, codec)


@pytest.mark.ranks(2)
def test_refusals(world_size: int) -> None:
    tensor = noise(2)
    for name in NAMES:
        call = form(name)
        with pytest.raises(ValueError, match="no-such"):
            call(tensor, codec="no-such")
        with pytest.raises(ValueError, match="no-such"):
            call(tensor, codec="int8", backward_codec="no-such")
        with pytest.raises(ValueError, match="no group named 'absent'"):
            call(tensor, group="absent", codec="int8")
        with pytest.raises(TypeError, match="floats"):
            call(tensor.long(), codec="int8")
    for name in ("reduce_scatter", "all_to_all"):
        with pytest.raises(ValueError, match="share evenly"):
            form(name)(noise(3), codec="int8")
    for name in ("all_reduce", "reduce_scatter"):
        with pytest.raises(ValueError, match="sum, avg"):
            form(name)(tensor, "max", codec="int8")
    with pytest.raises(ValueError, match="at least one dimension"):
        q7x2.functional.all_gather(torch.tensor(1.0), codec="int8")
    with pytest.raises(ValueError, match="not known in advance"):
        q7x2.functional.all_to_all(tensor, codec="topk:0.1")
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="needs a group with a q7x2 backend"):
        q7x2.functional.all_reduce(tensor, group=gloo, codec="int8")
    dist.destroy_process_group(gloo)
