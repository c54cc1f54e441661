"""``torch.distributed._time_estimator``: calls are not made; what they would take is added up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from q7x2._core.extension import load
from torch import Tensor
from values import assert_bits, f32, integers

pytestmark = pytest.mark.beyond("gloo", "Gloo estimates no times")

ELEMENTS = 3 * 1024


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]


def estimated(*calls: Callable[[], Any]) -> float:
    """Microseconds of the calls, one after the other."""
    with dist._time_estimator() as estimator:  # type: ignore[attr-defined]
        for call in calls:
            call()
    assert estimator.estimated_time is not None
    return float(estimator.estimated_time)


def predicted(collective: str, size: int, root: int = -1) -> float:
    """Microseconds, by the planner's commands; as measured, if ``q7x2.tune`` has measured them."""
    found = load().explain(collective, size, backend().fabric_json, root, "")[0]
    measured = found["measured"]
    return float(found["seconds"] if measured is None else measured) * 1e6


def all_of(tensor: Tensor) -> Tensor:
    return torch.full((dist.get_world_size() * tensor.numel(),), -1.0)


# The call, the planner's name of the collective, and the bytes that it is planned for.
CALLS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str, Callable[[int, int], int]]] = {
    "all_reduce": (lambda t, o: dist.all_reduce(t), "all_reduce", lambda n, ranks: n),
    "broadcast": (lambda t, o: dist.broadcast(t, 0), "broadcast", lambda n, ranks: n),
    "reduce": (lambda t, o: dist.reduce(t, 0), "reduce", lambda n, ranks: n),
    "all_gather": (
        lambda t, o: dist.all_gather_into_tensor(o, t),
        "all_gather",
        lambda n, ranks: n,
    ),
    "reduce_scatter": (
        lambda t, o: dist.reduce_scatter_tensor(o[: t.numel() // dist.get_world_size()], t),
        "reduce_scatter",
        lambda n, ranks: n // ranks,
    ),
    "all_to_all": (
        lambda t, o: dist.all_to_all_single(o[: t.numel()], t),
        "all_to_all",
        lambda n, ranks: n // ranks,
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.ranks(2, 3)
def test_nothing_runs_and_the_planner_answers(name: str, world_size: int) -> None:
    call, collective, planned = CALLS[name]
    tensor = integers(dist.get_rank(), ELEMENTS * world_size, f32)
    output = all_of(tensor)
    before = tensor.clone(), output.clone()
    sequence = backend()._get_sequence_number_for_group()
    took, twice, expected, fabric = 0.0, 0.0, 0.0, ""
    while fabric != backend().fabric_json:  # it may change while the machine is busy
        fabric = backend().fabric_json
        took = estimated(lambda: call(tensor, output))
        twice = estimated(lambda: call(tensor, output), lambda: call(tensor, output))
        root = 0 if name in ("broadcast", "reduce") else -1
        expected = predicted(collective, planned(tensor.nbytes, world_size), root)
    assert_bits(tensor, before[0])
    assert_bits(output, before[1])
    assert backend()._get_sequence_number_for_group() == sequence
    assert took == pytest.approx(expected, rel=0.01)  # JSON rounds
    assert twice == pytest.approx(2 * took)


def ask(codec: str, peer: int) -> None:
    tensor = torch.ones(ELEMENTS)
    took = estimated(
        lambda: dist.all_reduce(tensor),
        lambda: q7x2.all_reduce(tensor, codec=codec),
        lambda: q7x2.all_reduce(tensor, codec="sumint8"),
        lambda: dist.send(tensor, peer),
        lambda: dist.recv(tensor, peer),
        dist.barrier,
    )
    assert took > 0
    assert_bits(tensor, torch.ones(ELEMENTS))


@pytest.mark.ranks(3)
def test_one_rank_may_ask_alone(world_size: int) -> None:
    """What ranks agree on, and the numbers that they count, stay the same."""
    me = dist.get_rank()
    codec = "hadamard+int8"
    for turn in range(2):
        if me == turn:
            ask(codec, (me + 1) % world_size)
        total = torch.full((ELEMENTS,), float(me))
        dist.all_reduce(total)
        assert_bits(total, torch.full((ELEMENTS,), 3.0))
        chance = torch.Generator().manual_seed(me)
        rotated = torch.randn(ELEMENTS, generator=chance)
        exact = rotated.clone()
        dist.all_reduce(exact)
        q7x2.all_reduce(rotated, codec=codec)
        assert (rotated - exact).abs().max() < 0.2


@pytest.mark.ranks(2)
def test_scaled_sums_leave_their_input_alone() -> None:
    factor = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
    tensor = torch.ones(ELEMENTS)
    estimated(lambda: dist.all_reduce(tensor, op=factor), lambda: dist.reduce(tensor, 0, op=factor))
    assert_bits(tensor, torch.ones(ELEMENTS))
    dist.all_reduce(tensor, op=factor)
    assert_bits(tensor, torch.ones(ELEMENTS))


@pytest.mark.ranks(2)
def test_works_of_estimates_are_complete() -> None:
    tensor = torch.ones(ELEMENTS)
    output = all_of(tensor)

    def calls() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait()
        assert work.is_completed()
        assert work.get_future().wait()[0] is not None
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as coalesced:
            dist.all_gather_into_tensor(output, tensor)
            dist.all_gather_into_tensor(output, tensor)
        coalesced.wait()
        functional = torch.ops._c10d_functional
        result = functional.all_reduce(tensor, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
        functional.wait_tensor(result)

    took, expected, fabric = 0.0, 0.0, ""
    while fabric != backend().fabric_json:
        fabric = backend().fabric_json
        took = estimated(calls)
        expected = 2 * predicted("all_reduce", tensor.nbytes)
        expected += 2 * predicted("all_gather", tensor.nbytes)
    assert took == pytest.approx(expected, rel=0.01)  # JSON rounds


@pytest.mark.ranks(2)
def test_calls_of_other_threads_are_made() -> None:
    tensor = torch.ones(ELEMENTS)
    thread = threading.Thread(target=dist.all_reduce, args=(tensor,))

    def run() -> None:
        thread.start()
        thread.join()

    assert estimated(run) == 0
    assert_bits(tensor, torch.full((ELEMENTS,), 2.0))


@pytest.mark.ranks(2)
def test_what_cannot_be_estimated_is_an_error() -> None:
    tensor = torch.ones(ELEMENTS)
    calls: dict[str, Callable[[], Any]] = {
        "a receive from any rank": lambda: dist.recv(tensor),
        "a monitored barrier": lambda: q7x2.monitored_barrier(),
        "a sparse all-reduce": lambda: dist.all_reduce(tensor.to_sparse()),
    }
    group = backend()
    group._start_time_estimate()
    for text, call in calls.items():
        with pytest.raises(RuntimeError, match=text):
            call()
    with pytest.raises(RuntimeError, match="expected _end_time_estimate"):
        group._start_time_estimate()
    with pytest.raises(RuntimeError, match=r"invalid source|own rank"):
        dist.recv(tensor, src=dist.get_rank())
    assert group._end_time_estimate() == 0
    with pytest.raises(RuntimeError, match="expected _start_time_estimate"):
        group._end_time_estimate()
    dist.all_reduce(tensor)
    assert tensor[0] == 2


@pytest.mark.ranks(2)
def test_inductor_asks_the_planner() -> None:
    from torch._inductor.comm_analysis import estimate_nccl_collective_runtime_from_fx_node
    from torch.fx.experimental.proxy_tensor import make_fx

    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def reduced(tensor: Tensor) -> Tensor:
        functional = torch.ops._c10d_functional
        return functional.wait_tensor(functional.all_reduce(tensor, "sum", name))  # type: ignore[no-any-return]

    tensor = torch.ones(ELEMENTS)
    traced = make_fx(reduced, tracing_mode="fake")(tensor)
    (node,) = (each for each in traced.graph.nodes if "all_reduce" in str(each.target))
    took, expected, fabric = 0.0, 0.0, ""
    while fabric != backend().fabric_json:
        fabric = backend().fabric_json
        took = 1e3 * estimate_nccl_collective_runtime_from_fx_node(node)
        expected = predicted("all_reduce", tensor.nbytes)
    assert took == pytest.approx(expected, rel=0.01)  # JSON rounds
