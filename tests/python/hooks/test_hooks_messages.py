"""Gradients that share a message are coded as if each had a message of its own.

The scale of a group of elements depends on one parameter only, whatever its size. So a bucket takes
one collective per codec, and parameters do not see each other in it.
"""

from __future__ import annotations

import copy
import math
import os
import random
from typing import Any

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import assert_states_equal
from idle_cases import Given
from pairs import nightly
from q7x2._core.groups import end_group
from torch.nn.parallel import DistributedDataParallel as DDP
from values import assert_bits, assert_close

SEED = int(os.environ.get("Q7X2_RANDOM_SEED", "1"))
CASES = int(os.environ.get("Q7X2_HOOK_CASES", "10"))
MORE = "three ranks do more of the same; the other tests of messages have two"

DETERMINISTIC = [
    *("int8", "int4:g=512", "int3:g=64", "int2:g=32", "int8:g=256", "fp8_e4m3", "fp8_e5m2:g=32"),
    *("int4:g=32:minmax", "int8:minmax", "onebit:g=64", "onebit", "int8+lossless", "bf16"),
    *("int8:g=1024", "int4:g=1024:minmax"),
]
# Their random numbers depend on the place in the message.
RANDOM = ["int4", "hadamard+int8", "hadamard+onebit", "int4:sr", "ternary:g=64", "qsgd:g=128"]
NO_ERRORS = {"int4:sr", "ternary:g=64", "qsgd:g=128"}  # unbiased by themselves
SHAPES = [(1, 1), (31, 67), (16, 32), (5, 100), (3, 171), (32, 32), (2, 2, 9), (33,), (7,)]


def random_shapes(chance: random.Random) -> list[tuple[int, ...]]:
    return [
        chance.choice([*SHAPES, (chance.randint(1, 40), chance.randint(1, 40))])
        for _ in range(chance.randint(2, 6))
    ]


def random_gradients(
    chance: random.Random, shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    exponents = [chance.randint(-3, 3) for _ in shapes]
    return [
        (torch.randn(shape, generator=generator) * 10.0**exponent).to(dtype)
        for shape, exponent in zip(shapes, exponents, strict=True)
    ]


def made(codec: str, **options: Any) -> q7x2.Quantize:
    options.setdefault("use_error_feedback", codec not in NO_ERRORS)
    return q7x2.Quantize(codec, compress_vectors=True, **options)


class Trained:
    """A model whose gradients are given."""

    def __init__(
        self, hook: Any, shapes: list[tuple[int, ...]], dtype: torch.dtype, group: Any = None
    ) -> None:
        self.ddp = DDP(Given(shapes, dtype), process_group=group)
        self.attached = q7x2.attach(self.ddp, hook)

    def reduced(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        self.ddp.zero_grad()
        self.ddp(gradients).backward()
        return [p.grad.clone() for p in self.ddp.parameters()]

    def lost(self) -> dict[int, torch.Tensor]:
        """The sums of all ranks' residuals, by parameter; short ones are sent whole."""
        (local,) = self.attached.state_dict()["local"].values()
        sums = {
            int(name.rpartition(".")[2]): each.double()
            for name, each in local.get("residual", {}).items()
        }
        for each in sums.values():
            dist.all_reduce(each)
        return sums


def collectives(trained: Trained, gradients: list[torch.Tensor]) -> int:
    """Those of a step that is no first one, after which DDP makes its buckets anew."""
    trained.reduced(gradients)
    trained.attached.trace()
    trained.reduced(gradients)
    return sum(event.name == "collective" for event in trained.attached.take_events())


@pytest.mark.parametrize("codec", ["int8", "int4", "onebit:g=64", "int4:minmax", "fp8_e4m3"])
@pytest.mark.ranks(2)
def test_a_bucket_takes_one_message_whatever_the_sizes(codec: str) -> None:
    gradients = {
        sizes: [torch.ones(size) for size in sizes]
        for sizes in (((32, 32),), ((31, 67),) * 50, ((31, 67), (32, 33), (32, 32), (57, 7)))
    }
    options = {"use_error_feedback": False}  # else there is a second message, of who uses what
    counts = [
        collectives(Trained(made(codec, **options), list(sizes), torch.float32), tensors)
        for sizes, tensors in gradients.items()
    ]
    assert counts == [counts[0]] * len(counts)


@pytest.mark.parametrize(
    "codec", ["int8", "int4", "onebit:g=64", "int4:minmax", "bf16", "int8:g=32"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.ranks(2)
def test_no_code_is_longer_than_the_gradient(codec: str, dtype: torch.dtype) -> None:
    for shape in ((1, 1), (7, 9), (2, 64), (3, 43), (10, 26), (24, 24)):
        shapes = [shape] * 20
        coded, plain = (
            Trained(hook, shapes, dtype)
            for hook in (made(codec, use_error_feedback=False), q7x2.Allreduce())
        )
        gradients = [torch.ones(shape, dtype=dtype) for shape in shapes]
        for model in (coded, plain):
            for _ in range(2):
                model.reduced(gradients)
        sent, dense = (model.attached.stats.message_bytes for model in (coded, plain))
        assert 0 < sent <= dense + 256, (shape, sent, dense)


def saved_when_all_were_coded(
    state: dict[str, Any], shapes: list[tuple[int, ...]]
) -> dict[str, Any]:
    """The state as it was when short gradients went through the codec, too: all have residuals."""
    state = copy.deepcopy(state)
    (local,) = state["local"].values()
    for name in state["shapes"]:
        shape = shapes[int(name.rpartition(".")[2])]
        local["residual"].setdefault(name, torch.full(shape, 3.0))
    return state


def saved_by(ranks: int, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a job of more ranks, each of which has what this one has."""
    (local,) = state["local"].values()
    everybody = {f"rank_{rank}": local for rank in range(ranks)}
    return {**state, "world_size": ranks, "local": everybody}


@pytest.mark.parametrize("codec", ["int8", "int4", "int4:minmax", "fp8_e4m3"])
@pytest.mark.parametrize("saved_ranks", [2, 4])
@pytest.mark.ranks(2)
def test_residuals_of_gradients_that_are_sent_whole_now_are_dropped(
    codec: str, saved_ranks: int
) -> None:
    shapes = [(7, 9), (31, 67), (1, 1), (40, 40), (33,)]
    chance = random.Random(SEED + dist.get_rank())
    before = Trained(made(codec), shapes, torch.float32)
    before.reduced(random_gradients(chance, shapes, torch.float32))
    state = before.attached.state_dict()
    gradients = random_gradients(chance, shapes, torch.float32)
    loaded = []
    for each in (state, saved_when_all_were_coded(state, shapes)):
        after = Trained(made(codec), shapes, torch.float32)
        after.attached.load_state_dict(saved_by(saved_ranks, each))
        loaded.append((after.attached.state_dict(), after.reduced(gradients)))
    (expected, results), (found, results_of_old) = loaded
    (kept,) = expected["local"].values()
    assert 0 < len(kept["residual"]) < len(shapes)
    assert all(residual.any() for residual in kept["residual"].values())
    assert_states_equal(found, expected)
    for mine, its in zip(results_of_old, results, strict=True):
        assert_bits(mine, its)


def check_independence(
    codec: str, shapes: list[tuple[int, ...]], dtype: torch.dtype, changed: int, factor: float
) -> None:
    """Whatever the gradient of parameter ``changed`` is, the others' results keep their bits."""
    models = [Trained(made(codec, random_seed=3), shapes, dtype) for _ in range(2)]
    for step in range(3):
        each = random.Random(SEED + 100 * step + dist.get_rank())
        gradients = random_gradients(each, shapes, dtype)
        others = [g * factor if i == changed else g for i, g in enumerate(gradients)]
        results = [
            model.reduced(given) for model, given in zip(models, (gradients, others), strict=True)
        ]
        for i, (mine, its) in enumerate(zip(*results, strict=True)):
            if i != changed:
                assert_bits(mine, its, f"parameter {i} of {shapes}, {codec}, {dtype}, {step}")
        if math.isnan(factor):
            break  # the step is undone


@pytest.mark.ranks(nightly(2, MORE), 3, deadline=240)
def test_no_parameter_changes_what_another_gets() -> None:
    """Another gradient of 10,000 times the magnitude, or of NaN, leaves all bits as they are."""
    for index in range(CASES):
        chance = random.Random(SEED * 1_000_003 + index)
        codec = chance.choice([*DETERMINISTIC, *RANDOM])
        shapes, dtype = random_shapes(chance), chance.choice([torch.float32, torch.float64])
        changed = chance.randrange(len(shapes))
        factor = 1e4 if chance.random() < 0.5 else math.nan
        check_independence(codec, shapes, dtype, changed, factor)


@pytest.mark.parametrize("codec", ["onebit", "int8:g=1024", "hadamard+int4:g=1024"])
@pytest.mark.ranks(3)
def test_no_part_of_a_call_ends_within_a_wide_group(codec: str) -> None:
    """A part for each rank would be 1128 elements."""
    shapes = [(3, 171), (16, 32), (3, 171), (26, 12)]
    for dtype in (torch.float32, torch.float64):
        for changed in range(len(shapes)):
            check_independence(codec, shapes, dtype, changed, 1e4)


@pytest.mark.ranks(nightly(2, MORE), 3, deadline=240)
def test_results_and_losses_are_those_of_a_message_per_parameter() -> None:
    """One rank alone has gradients, so it does not matter who owns a part and adds it up."""
    for index in range(CASES):
        chance = random.Random(SEED * 7_919 + index)
        codec = chance.choice([codec for codec in DETERMINISTIC if "onebit" not in codec])
        dtype = chance.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
        # Few on Gloo: a hook's groups stay, with three threads each.
        backend = "gloo" if chance.random() < 0.15 else dist.get_backend()
        group = None if backend == dist.get_backend() else dist.new_group(backend=backend)
        shapes = random_shapes(chance)
        together = Trained(made(codec), shapes, dtype, group)
        apart = [Trained(made(codec), [shape], dtype, group) for shape in shapes]
        gradients = random_gradients(chance, shapes, dtype)
        if dist.get_rank() != index % dist.get_world_size():
            gradients = [torch.zeros_like(g) for g in gradients]
        results, lost = together.reduced(gradients), together.lost()
        tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2
        for i, (model, gradient) in enumerate(zip(apart, gradients, strict=True)):
            (single,) = model.reduced([gradient])
            scale = float(single.double().abs().max()) + 1e-30
            close = {"rtol": 0.0, "atol": tolerance * scale}
            where = f"{codec}, {dtype}, parameter {i} of {shapes}, {backend}"
            assert_close(results[i], single, f"result, {where}", **close)
            alone = model.lost()
            assert (i in lost) == (0 in alone), where
            if i in lost:
                assert_close(lost[i], alone[0], f"residual, {where}", **close)
        if group is not None:
            del together, apart
            end_group(group, torch.device("cpu"))


@pytest.mark.ranks(2)
def test_one_bit_scales_do_not_shrink_with_the_padding() -> None:
    """The mean magnitude of a short group is that of its elements."""
    shapes = [(1, 3), (5, 13), (31, 67), (1, 65), (8, 8)]
    model = Trained(q7x2.OneBit(start_iter=0), shapes, torch.float32)
    results = model.reduced([torch.full(shape, 0.5) for shape in shapes])
    for result, shape in zip(results, shapes, strict=True):
        assert_close(result, torch.full(shape, 0.5))
