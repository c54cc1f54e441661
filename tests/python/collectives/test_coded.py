"""Compressed collectives: q7x2.all_reduce and its kin, between real processes."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import q7x2
import torch
import torch.distributed as dist
from values import assert_bits, assert_same_on_all_ranks

pytestmark = pytest.mark.beyond("gloo", "codecs are q7x2's")

CPU = torch.device("cpu")

# Relative error of one rounding of normal numbers, with some room.
ERRORS = {
    "fp32": 1e-6,
    "fp16": 1e-3,
    "bf16": 5e-3,
    "fp8_e4m3": 0.05,
    "fp8_e5m2": 0.1,
    "int8": 0.02,
    "int8:g=32:sr": 0.02,
    "int6": 0.05,
    "int4:minmax": 0.2,
    "int4:g=128": 0.2,
    "int3": 0.5,
    "hadamard+int4": 0.25,
    "sumint8": 0.06,
    "sumint16": 1e-3,
    "sumint32": 1e-6,
    "qsgd:bits=8": 0.2,
}
COARSE = ("int2", "ternary", "onebit", "hadamard+onebit", "sign")
SPARSE = (
    *("topk:0.01", "topk:0.1:reselect", "topk:0.05+int8+lossless", "topk:0.2+hadamard+int4"),
    *("sampled:0.02", "threshold:1.5", "randomk:0.1", "blocks:0.2", "nm:2:8"),
    *("topk:0.05:balanced", "topk:0.1:reselect:balanced", "threshold:1.5:balanced+int8"),
)


def noise(rank: int, size: int, step: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1 + rank + 1000 * step)
    return torch.randn(size, generator=generator).to(dtype)


def exact_sum(world_size: int, size: int, step: int = 0) -> torch.Tensor:
    return sum(
        (noise(rank, size, step).double() for rank in range(world_size)),
        torch.zeros(size, dtype=torch.double),
    )


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    scale = max(float(exact.norm()), exact.numel() ** 0.5, 1e-30)
    return float((result.double() - exact).norm()) / scale


@pytest.mark.ranks(1, 2, 4)
def test_every_codec(world_size: int) -> None:
    for codec in (*ERRORS, *COARSE, *SPARSE):
        for size in (0, 1, 1000, 40_007):
            tensor = noise(dist.get_rank(), size)
            q7x2.all_reduce(tensor, codec=codec)
            assert_same_on_all_ranks([tensor], (codec, size))
            if codec in ERRORS:
                error = relative_error(tensor, exact_sum(world_size, size))
                assert error <= 2 * ERRORS[codec], (codec, size)


@pytest.mark.ranks(2, 3)
def test_average_and_dtypes(world_size: int) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        tensor = noise(dist.get_rank(), 5003, dtype=dtype).view(-1, 1)
        q7x2.all_reduce(tensor, codec="int8", op=dist.ReduceOp.AVG)
        assert tensor.dtype == dtype
        error = relative_error(tensor.view(-1), exact_sum(world_size, 5003) / world_size)
        assert error < 0.05, dtype


@pytest.mark.ranks(3)
def test_lists_strides_and_async(world_size: int) -> None:
    me = dist.get_rank()
    tensors = [noise(me, size, step=size) for size in (7, 0, 3000)]
    strided = torch.zeros(100, 2)
    strided[:, 0] = noise(me, 100)
    work = q7x2.all_reduce([*tensors, strided[:, 0]], codec="fp16", async_op=True)
    assert work is not None
    work.wait()
    for tensor in tensors:
        exact = exact_sum(world_size, tensor.numel(), step=tensor.numel())
        assert relative_error(tensor, exact) < 2e-3
    assert relative_error(strided[:, 0], exact_sum(world_size, 100)) < 2e-3
    assert not strided[:, 1].any()


@pytest.mark.ranks(3)
def test_results_and_residuals_are_the_sum(world_size: int) -> None:
    size = 3001
    for codec in ("int4", "onebit", "sumint8:sr", "hadamard+int2", "ternary", *SPARSE):
        residual = torch.zeros(size)
        given = torch.zeros(size, dtype=torch.double)
        received = torch.zeros(size, dtype=torch.double)
        for step in range(30):
            tensor = noise(dist.get_rank(), size, step)
            q7x2.all_reduce(tensor, codec=codec, residual=residual)
            given += exact_sum(world_size, size, step)
            received += tensor
        owed = residual.double()
        dist.all_reduce(owed)
        assert relative_error(received + owed, given) < 1e-5, codec
        # Something was lost on the way, or the test shows nothing.
        assert relative_error(received, given) > 1e-3, codec


@pytest.mark.ranks(3)
def test_balanced_parts_change_nothing_but_who_adds(world_size: int) -> None:
    def clustered(size: int) -> torch.Tensor:
        tensor = noise(dist.get_rank(), size, step=size)
        tensor[size // 3 :][: size // 16] *= 50
        return tensor

    sizes = (0, 1, 900, 50_001, 300_000)
    plain = [clustered(size) for size in sizes]
    balanced = [clustered(size) for size in sizes]
    residuals = [torch.zeros(size) for size in sizes]
    kept = [torch.zeros(size) for size in sizes]
    with q7x2.collectives.algorithm("sra"):
        q7x2.all_reduce(plain, codec="topk:0.02", residual=residuals)
        # Several at once, and another collective before they are complete.
        first = q7x2.all_reduce(balanced, codec="topk:0.02:balanced", residual=kept, async_op=True)
        ones = torch.ones(3)
        dist.all_reduce(ones)
        assert first is not None
        first.wait()
    assert_bits(ones, torch.full((3,), float(world_size)))
    for i, size in enumerate(sizes):
        assert_bits(balanced[i], plain[i], size)
        assert_bits(kept[i], residuals[i], size)


@pytest.mark.ranks(3)
def test_the_same_bits_in_every_run() -> None:
    def run(step: int | None, seed: int = 5) -> torch.Tensor:
        tensor = noise(dist.get_rank(), 4000)
        q7x2.all_reduce(tensor, codec="ternary", seed=seed, step=step)
        return tensor

    first = run(step=1)
    assert_bits(run(step=1), first, "the same step")
    assert not torch.equal(run(step=2), first)
    assert not torch.equal(run(step=1, seed=6), first)
    assert not torch.equal(run(step=None), run(step=None))


@pytest.mark.ranks(3)
def test_reduce_scatter_and_all_gather(world_size: int) -> None:
    me = dist.get_rank()
    for size in (0, 5, 5001):
        output = torch.empty(size)
        whole = noise(me, size * world_size)
        residual = torch.zeros_like(whole)
        q7x2.reduce_scatter_tensor(output, whole, codec="int8", residual=residual)
        mine = slice(me * size, (me + 1) * size)
        assert relative_error(output, exact_sum(world_size, size * world_size)[mine]) < 0.05
        assert not residual[mine].any()  # an owner adds its own exactly
        gathered = torch.empty(size * world_size)
        q7x2.all_gather_into_tensor(gathered, output, codec="int8")
        assert_same_on_all_ranks([gathered], size)


@pytest.mark.ranks(2)
def test_an_asynchronous_call_waits_for_no_other_rank(world_size: int) -> None:
    """Rank 1 makes its calls only once those of rank 0 have returned."""
    store = dist.distributed_c10d._get_default_store()
    size = 50_000
    for codec in ("none", "int8", "sumint16", "hadamard+sumint16", "topk:1.0:balanced"):
        if dist.get_rank() == 1:
            store.wait([f"rank 0 has called with {codec}"])
        tensor = noise(dist.get_rank(), size)
        whole = noise(dist.get_rank(), size)
        output = torch.empty(size // world_size)
        works = [q7x2.all_reduce(tensor, codec=codec, async_op=True)]
        if not codec.endswith(":balanced"):
            works.append(q7x2.reduce_scatter_tensor(output, whole, codec=codec, async_op=True))
        if dist.get_rank() == 0:
            store.set(f"rank 0 has called with {codec}", "1")
        for work in works:
            work.wait()
        exact = exact_sum(world_size, size)
        assert relative_error(tensor, exact) < 0.02, codec
        if len(works) > 1:
            mine = exact.chunk(world_size)[dist.get_rank()]
            assert relative_error(output, mine) < 0.02, codec


@pytest.mark.ranks(1, 3)
def test_reduce_scatter_adds_integers(world_size: int) -> None:
    me = dist.get_rank()
    for size in (0, 1, 1500):
        residual = torch.zeros(size * world_size)
        given = torch.zeros(size * world_size, dtype=torch.double)
        received = torch.zeros(size, dtype=torch.double)
        for step in range(20):
            output = torch.empty(size)
            whole = noise(me, size * world_size, step)
            q7x2.reduce_scatter_tensor(output, whole, codec="sumint8", residual=residual)
            given += exact_sum(world_size, size * world_size, step)
            received += output
        owed = residual.double()
        dist.all_reduce(owed)
        mine = slice(me * size, (me + 1) * size)
        assert relative_error(received + owed[mine], given[mine]) < 1e-5
    with pytest.raises(RuntimeError, match="for all_reduce and reduce_scatter, expected one such"):
        q7x2.all_gather_into_tensor(torch.empty(3 * world_size), torch.ones(3), codec="sumint8")


@pytest.mark.ranks(2)
def test_what_is_not_finite() -> None:
    tensor = torch.ones(5000)
    if dist.get_rank() == 1:
        tensor[4000] = float("inf")
    refused = tensor.clone()
    q7x2.all_reduce(tensor, codec="int8")
    assert not tensor[4000].isfinite()
    assert tensor[:3000].isfinite().all()
    with pytest.raises(RuntimeError, match="infinities or NaNs in the result"):
        q7x2.all_reduce(refused, codec="int8", nonfinite="error")
    q7x2.all_reduce(torch.ones(5), codec="int8", nonfinite="error")  # the group lives on


@pytest.mark.ranks(3)
def test_edges_inside_a_host_are_exact(world_size: int) -> None:
    """All ranks share a host and a rack here, so there is nothing to compress."""
    me = dist.get_rank()
    for edges in ("host", "rack"):
        for size in (1, 1000, 40_007):
            dense = noise(me, size)
            dist.all_reduce(dense)
            tensor = noise(me, size)
            q7x2.all_reduce(tensor, codec="int4", edges=edges)
            assert_bits(tensor, dense, (edges, size))
            output, whole = torch.empty(size), noise(me, size * world_size)
            residual = torch.full_like(whole, 0.5)
            q7x2.reduce_scatter_tensor(output, whole, codec="int4", residual=residual, edges=edges)
            exact = exact_sum(world_size, size * world_size)[me * size :][:size]
            assert relative_error(output, exact + 0.5 * world_size) < 1e-6
            assert not residual.any()
            assert_bits(whole, noise(me, size * world_size), "the input")
            gathered = torch.empty(size * world_size)
            q7x2.all_gather_into_tensor(gathered, noise(me, size), codec="int4", edges=edges)
            assert_bits(gathered[me * size :][:size], noise(me, size), (edges, size))
            assert_same_on_all_ranks([gathered], (edges, size))
    tensor = noise(me, 1000)
    with pytest.raises(RuntimeError, match="infinities or NaNs in the result"):
        q7x2.all_reduce(tensor / 0, codec="int4", edges="host", nonfinite="error")


@pytest.mark.ranks(4)
def test_edges_of_two_hosts(world_size: int) -> None:
    """Each choice gives equal bits on all ranks, and takes residuals along."""
    me = dist.get_rank()
    hosts = [{"name": f"h{i}", "egress": 1e8, "ingress": 1e8} for i in range(2)]
    group = dist.new_group()
    group._get_backend(CPU).set_fabric(
        json.dumps({"q7x2_fabric": 1, "hosts": hosts, "ranks": [0, 0, 1, 1]})
    )
    for edges in ("auto", "all", "host", "rack", "slow"):
        residual = torch.zeros(100_003)
        given = torch.zeros(100_003, dtype=torch.double)
        received = torch.zeros(100_003, dtype=torch.double)
        for step in range(4):
            tensor = noise(me, 100_003, step)
            q7x2.all_reduce(tensor, codec="int4", group=group, residual=residual, edges=edges)
            assert_same_on_all_ranks([tensor], (edges, step))
            given += exact_sum(world_size, 100_003, step)
            received += tensor
        owed = residual.double()
        dist.all_reduce(owed)
        assert relative_error(received + owed, given) < 1e-5, edges
        is_exact = relative_error(received, given) < 1e-6
        assert is_exact == (edges == "rack"), edges  # all hosts share a rack
    dist.destroy_process_group(group)


def set_rates(rate: float, path: Path) -> str:
    """Gives every rank a host whose cable carries ``rate``; returns the Fabric before."""
    ranks = range(dist.get_world_size())
    if dist.get_rank() == 0:
        hosts = [{"name": f"h{i}", "egress": rate, "ingress": rate} for i in ranks]
        path.write_text(json.dumps({"q7x2_fabric": 1, "hosts": hosts, "ranks": [*ranks]}))
    dist.barrier()
    backend = dist.group.WORLD._get_backend(CPU)
    before: str = backend.fabric_json
    backend.set_fabric(path.read_text())
    return before


@pytest.mark.ranks(3)
def test_auto_compresses_where_it_pays_only(world_size: int, shared: str) -> None:
    def error_of(rate: float, **options: float) -> float:
        before = set_rates(rate, Path(shared) / f"{rate}.json")
        tensor = noise(dist.get_rank(), 300_000)
        q7x2.all_reduce(tensor, codec="auto", **options)
        dist.group.WORLD._get_backend(CPU).set_fabric(before)
        assert_same_on_all_ranks([tensor], rate)
        return relative_error(tensor, exact_sum(world_size, tensor.numel()))

    slow, fast = 1e6, 1e13
    assert error_of(fast) < 1e-6
    assert 1e-6 < error_of(slow, max_error=0.01) < 0.02
    assert 0.05 < error_of(slow, max_error=0.3) < 0.6
    assert error_of(slow, max_error=0) < 1e-6


@pytest.mark.ranks(4)
def test_auto_heeds_the_algorithms_of_the_thread(world_size: int, shared: str) -> None:
    # At this rate the planner's own choice is faster than anything compressed, and a tree is not.
    set_rates(6e9, Path(shared) / "fabric.json")
    errors = []
    for algorithms in ("", "binomial_tree"):
        tensor = noise(dist.get_rank(), 300_000)
        with q7x2.collectives.algorithm(algorithms):
            q7x2.all_reduce(tensor, codec="auto", max_error=0.01)
        errors.append(relative_error(tensor, exact_sum(world_size, tensor.numel())))
    assert errors[0] < 1e-6 < errors[1]


@pytest.mark.ranks(1)
def test_bad_arguments() -> None:
    tensor = torch.ones(10)
    for codec, message in (
        ("int5", "there is no 'int5'; did you mean 'int[0-9]'"),
        ("int4:g=100", "expected g=32 ... g=1024"),
        ("int8+int4", "out of place"),
        ("", "there is no ''"),
        ("fp16:sr", "'fp16' does not take 'sr'"),
        ("hadamard+fp16", "hadamard needs a value stage with groups"),
    ):
        with pytest.raises(RuntimeError, match=re.compile(message)):
            q7x2.all_reduce(tensor, codec=codec)
    with pytest.raises(RuntimeError, match="floating point tensors, got Int"):
        q7x2.all_reduce(torch.ones(3, dtype=torch.int32), codec="int8")
    with pytest.raises(RuntimeError, match="a SUM or an AVG"):
        q7x2.all_reduce(tensor, codec="int8", op=dist.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="expected float32 with 10 elements"):
        q7x2.all_reduce(tensor, codec="int8", residual=torch.zeros(9))
    with pytest.raises(RuntimeError, match="takes no residual"):
        q7x2.all_reduce(tensor, codec="sign", residual=torch.zeros(10))
    with pytest.raises(RuntimeError, match="must have world size times"):
        q7x2.reduce_scatter_tensor(torch.ones(3), torch.ones(4), codec="int8")
    with pytest.raises(RuntimeError, match="expected one without ':balanced'"):
        q7x2.reduce_scatter_tensor(tensor, tensor.clone(), codec="topk:0.1:balanced")
    with pytest.raises(RuntimeError, match="expected one without ':balanced'"):
        q7x2.all_gather_into_tensor(tensor, tensor.clone(), codec="topk:0.1:balanced")
    with pytest.raises(ValueError, match="nonfinite: expected one of"):
        q7x2.all_reduce(tensor, codec="int8", nonfinite="ignore")
    with pytest.raises(ValueError, match="edges: expected one of auto, all, host, rack, slow"):
        q7x2.all_reduce(tensor, codec="int8", edges="hosts")
    with pytest.raises(RuntimeError, match="vote of all ranks: expected edges auto or all"):
        q7x2.all_reduce(tensor, codec="sign", edges="host")
    with pytest.raises(RuntimeError, match="adds integers on all edges"):
        q7x2.all_reduce(tensor, codec="sumint8", edges="slow")
    with pytest.raises(TypeError, match="expected a tensor"):
        q7x2.all_reduce([1.0], codec="int8")


def test_a_codec_is_given_by_keyword() -> None:
    tensor = torch.ones(4)
    for call in (
        lambda: q7x2.all_reduce(tensor, "int8"),
        lambda: q7x2.reduce_scatter_tensor(tensor, tensor, "int8"),
        lambda: q7x2.all_gather_into_tensor(tensor, tensor, "int8"),
    ):
        with pytest.raises(TypeError, match="give a codec by keyword, codec='int8'"):
            call()


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"])
def test_arguments_have_the_names_and_order_of_torch(name: str) -> None:
    ours = inspect.signature(getattr(q7x2, name)).parameters.values()
    torchs = inspect.signature(getattr(dist, name)).parameters
    assert [each.name for each in ours if each.kind != each.KEYWORD_ONLY] == list(torchs)


@pytest.mark.ranks(2, fresh=True)
def test_ranks_that_disagree_get_an_error() -> None:
    with pytest.raises(dist.DistBackendError, match="ranks disagree about a collective"):
        q7x2.all_reduce(torch.ones(100), codec="int8" if dist.get_rank() == 0 else "int4")
