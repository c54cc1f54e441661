"""What docs/codecs.md says of errors and bias, for numbers that are made to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import q7x2
import torch
import torch.distributed as dist
from hook_training import attached, backward, parameters_of
from q7x2._core.extension import load
from values import assert_same_on_all_ranks

Bound = Callable[[torch.Tensor], float]


def hard_inputs(count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Spikes, equal numbers, ramps, ties between two codes, and numbers of very different size."""
    for spikes in (1, 2, 3, 4, 5, 8, 16, 32, 64, count // 2, count):
        values = torch.zeros(count)
        values[:spikes] = 1
        yield f"the first {spikes} equal", values
        spread = torch.zeros(count)
        spread[:: count // spikes] = 1
        yield f"{spikes} equal ones apart", spread
        generator = torch.Generator().manual_seed(spikes)
        signs = torch.zeros(count)
        places = torch.randperm(count, generator=generator)[:spikes]
        signs[places] = torch.randn(spikes, generator=generator).sign()
        yield f"{spikes} signs", signs
    for factor in (0.5, 0.9, 0.99):
        yield f"powers of {factor}", factor ** torch.arange(float(count))
    yield "a ramp", torch.arange(float(count))
    yield "one sign", 1 + torch.arange(float(count)) / count
    for levels in (1, 3, 7, 31, 127):  # halfway between two codes, and the largest
        ties = (torch.arange(float(count)) % levels + 0.5) / levels
        ties[0] = 1
        yield f"ties of {levels} levels", ties
    floor = torch.full((count,), 1e-3)
    floor[0] = 1
    yield "a spike on a floor", floor
    generator = torch.Generator().manual_seed(0)
    yield "heavy tails", torch.randn(count, generator=generator) ** 5


def round_trip(codec: q7x2._C.Codec, values: torch.Tensor, key: int = 1) -> torch.Tensor:
    count = values.numel()
    message = torch.empty(codec.max_bytes(count), dtype=torch.uint8)
    lengths = codec.encode(values, message, block=count, shared_key=key, rounding_key=key + 1)
    decoded = torch.empty_like(values)
    codec.decode(message, lengths, decoded, block=count, shared_key=key)
    return decoded


def nearest(bits: int) -> Bound:
    """Equal steps on both sides of zero."""

    def bound(v: torch.Tensor) -> float:
        step = v.abs().max() / (2 ** (bits - 1) - 1)
        return float(torch.minimum(v.abs(), step / 2).square().sum())

    return bound


def between(bits: int) -> Bound:
    """Equal steps from the least number to the largest."""
    return lambda v: float(v.numel() * ((v.max() - v.min()) / (2**bits - 1)).square() / 4)


def floating(relative: float, absolute: Callable[[torch.Tensor], float]) -> Bound:
    return lambda v: float((relative * v.abs()).clamp_min(absolute(v)).square().sum())


FORMULAS: dict[str, Bound] = {
    "fp16": floating(2**-11, lambda v: 2**-25),
    "bf16": floating(2**-8, lambda v: 0.0),
    "fp8_e4m3": floating(2**-4, lambda v: float(v.abs().max()) / 448 * 2**-10),
    "fp8_e5m2": floating(2**-3, lambda v: float(v.abs().max()) / 57344 * 2**-17),
    **{f"int{bits}": nearest(bits) for bits in (8, 6, 4, 3, 2)},
    "int4:g=64": nearest(4),
    **{f"int{bits}:minmax": between(bits) for bits in (8, 4, 2)},
    "onebit": lambda v: float(v.square().sum() - v.abs().sum().square() / v.numel()),
    "sign": lambda v: float(v.square().sum() - 2 * v.abs().sum() + v.numel()),
}

# Of docs/codecs.md: the largest relative error of these inputs, over many rotations.
LARGEST = {"onebit": 2.7, "int2": 0.75, "int3": 0.5, "int4": 0.24, "int6": 0.09, "int8": 0.04}

UNBIASED = [
    "int8:sr",
    "int4:sr",
    "int2:sr",
    "int4:minmax:sr",
    "qsgd",
    "ternary",
    "hadamard+int4:sr",
]
BIASED = ["int4", "onebit", "sign", "bf16", "hadamard+onebit", "hadamard+int2", "hadamard+int8"]


@pytest.mark.parametrize("name", FORMULAS)
def test_errors_are_within_their_formula_whatever_the_numbers(name: str) -> None:
    codec = load().Codec(name)
    for what, values in hard_inputs(codec.group or 512):
        for scale in (1.0, 1e-4, 1e4):
            scaled = (values * scale).clamp(-65504, 65504) if name == "fp16" else values * scale
            if name == "sign":
                scaled = scaled + (scaled == 0) * 0.5  # signs of zeros are drawn
            lost = float((round_trip(codec, scaled) - scaled).double().square().sum())
            size = float(scaled.double().square().sum())
            most = FORMULAS[name](scaled.double())
            assert lost <= most * (1 + 1e-4) + 1e-10 * size, (what, scale, lost, most)


@pytest.mark.parametrize("name", LARGEST)
def test_rotated_errors_are_what_the_page_says(name: str) -> None:
    codec = load().Codec(f"hadamard+{name}")
    largest = 0.0
    for _, values in hard_inputs(codec.group):
        for key in range(12):
            lost = (round_trip(codec, values, 7 * key + 1) - values).norm() / values.norm()
            largest = max(largest, float(lost))
    assert 0.5 * LARGEST[name] < largest < LARGEST[name]


@pytest.mark.parametrize("name", UNBIASED + BIASED)
def test_means_are_right_where_the_codec_says_so(name: str) -> None:
    """The mean of many messages, against its expected distance if errors are independent."""
    codec = load().Codec(name)
    assert codec.unbiased == (name in UNBIASED)
    draws, worst = 100, 0.0
    for what, values in hard_inputs(codec.group or 512):
        total, squares = torch.zeros_like(values).double(), 0.0
        for draw in range(draws):
            lost = (round_trip(codec, values, 11 * draw + 3) - values).double()
            total += lost
            squares += float(lost.square().sum())
        if squares <= 1e-9 * draws * float(values.double().square().sum()):
            continue  # nothing is lost
        ratio = float(total.square().sum()) / squares
        worst = max(worst, ratio)
        # Where a few numbers are rounded it is a sum of a few squares.
        assert name in BIASED or ratio < 12, (what, ratio)
    if name in BIASED:
        assert worst > 10  # it has a bias for some numbers


@pytest.mark.parametrize("name", ["sumint8", "sumint16"])
@pytest.mark.beyond("gloo", "codecs")
@pytest.mark.ranks(2, 3, 5)
def test_sums_of_integers_are_within_their_formula(name: str, world_size: int) -> None:
    largest_code = 2 ** (int(name[6:]) - 1) - 1
    levels = largest_code // world_size
    for what, values in hard_inputs(1024):
        mine = values.roll(dist.get_rank()) * (1 + dist.get_rank())
        exact = mine.double()
        dist.all_reduce(exact)
        largest = mine.abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        reduced = mine.clone()
        q7x2.all_reduce(reduced, codec=name)
        error = float((reduced.double() - exact).abs().max())
        most = world_size * float(largest) / (2 * levels)
        assert error <= most * (1 + 1e-4) + 1e-6 * float(largest), (what, error, most)


def with_outliers(rank: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(count, generator=generator)
    values[rank :: count // 4] *= 200
    return values


@pytest.mark.parametrize("name", ["sumint8", "sumint16", "sumint8:sr"])
@pytest.mark.beyond("gloo", "codecs")
@pytest.mark.ranks(2, 3, 5)
def test_rotated_integers_add(name: str, world_size: int) -> None:
    """Sums are right, residuals keep what is lost, and outliers do not stretch the steps."""
    count = 3000  # the last group is shorter
    for average in (False, True):
        op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        errors = {}
        for codec in (name, f"hadamard+{name}"):
            residual = torch.zeros(count)
            put_in, received = torch.zeros(count).double(), torch.zeros(count).double()
            for step in range(4):
                mine = with_outliers(dist.get_rank() + 10 * step, count)
                put_in += mine
                q7x2.all_reduce(mine, codec=codec, op=op, residual=residual)
                received += mine.double() * (world_size if average else 1)
            left = residual.double()
            for total in (put_in, left):
                dist.all_reduce(total)
            error = float((received + left - put_in).norm() / put_in.norm())
            assert error < 1e-5, (codec, error)
            errors[codec] = float(left.norm())
        assert errors[f"hadamard+{name}"] < 0.5 * errors[name], errors


@pytest.mark.beyond("gloo", "codecs")
@pytest.mark.ranks(2)
def test_rotated_integers_of_a_reduce_scatter_and_of_what_is_not_finite() -> None:
    mine = with_outliers(dist.get_rank(), 2 * 1500)
    exact = mine.double()
    dist.all_reduce(exact)
    out = torch.empty(1500)
    q7x2.reduce_scatter_tensor(out, mine.clone(), codec="hadamard+sumint16")
    part = exact.view(2, 1500)[dist.get_rank()]
    assert float((out.double() - part).norm() / part.norm()) < 1e-2
    mine[5] = torch.inf if dist.get_rank() == 1 else 1
    residual = torch.full((3000,), 0.5)
    q7x2.all_reduce(mine, codec="hadamard+sumint8", residual=residual)
    assert mine[:1024].isnan().all()
    assert mine[1024:].isfinite().all()
    assert bool((residual[:1024] == 0.5).all())
    assert bool((residual[1024:] != 0.5).any())


@pytest.mark.beyond("gloo", "codecs")
@pytest.mark.ranks(2)
def test_a_hook_takes_rotated_integers() -> None:
    ddp, hook = attached(q7x2.Quantize("hadamard+sumint8"))
    for step in range(3):
        backward(ddp, step)
    assert hook.steps == 3
    assert_same_on_all_ranks([p.grad for p in parameters_of(ddp)])
