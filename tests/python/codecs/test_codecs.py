"""Codecs without communication: their errors on real gradients, against docs/codecs.md."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from q7x2._core.extension import load
from torch import Tensor

from benchmarks.studies.codecs import Messages, real_gradient

GROUP = 512
COUNT = 256 * GROUP


@pytest.fixture(scope="module")
def gradient() -> Tensor:
    return real_gradient(COUNT)


def round_trip(name: str, values: Tensor) -> Tensor:
    messages = Messages(name, len(values))
    messages.encode(values)
    decoded = torch.empty_like(values)
    messages.decode(decoded)
    return decoded


def steps(levels: int) -> Callable[[Tensor], Tensor]:
    """The squared error of equal steps to the nearest, of each group."""

    def bound(groups: Tensor) -> Tensor:
        step = groups.abs().amax(1, keepdim=True) / levels
        return torch.minimum(groups.abs(), step / 2).square().sum(1)

    return bound


def relative(error: float) -> Callable[[Tensor], Tensor]:
    return lambda groups: groups.square().sum(1) * error**2


BOUNDS = {
    "int8": steps(127),
    "int6": steps(31),
    "int4": steps(7),
    "int3": steps(3),
    "int2": steps(1),
    "bf16": relative(2**-8),
    "onebit:g=512": lambda groups: groups.square().sum(1) - groups.abs().sum(1).square() / GROUP,
}
ON_AVERAGE = {
    "hadamard+int8": 0.0094,
    "hadamard+int4": 0.1143,
    "hadamard+int3": 0.2218,
    "hadamard+int2": 0.4846,
    "hadamard+onebit": math.sqrt(math.pi / 2 - 1),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_error_of_a_real_gradient_is_within_the_bound(name: str, gradient: Tensor) -> None:
    lost = (round_trip(name, gradient) - gradient).double().view(-1, GROUP).square().sum(1)
    bound = BOUNDS[name](gradient.double().view(-1, GROUP))
    assert (lost <= bound * (1 + 1e-4) + 1e-30).all()


@pytest.mark.parametrize("name", ON_AVERAGE)
def test_rotations_lose_the_same_of_any_numbers(name: str, gradient: Tensor) -> None:
    lost = (round_trip(name, gradient) - gradient).norm() / gradient.norm()
    assert lost <= ON_AVERAGE[name] * 1.05


@pytest.mark.parametrize("name", ["int4", "hadamard+int4", "onebit", "topk:0.01+int8", "fp16"])
def test_what_is_not_sent_is_kept(name: str, gradient: Tensor) -> None:
    errors = torch.full_like(gradient, 1e-3)
    given = gradient + errors
    messages = Messages(name, COUNT)
    messages.encode(gradient, errors)
    decoded = torch.ones_like(gradient)
    messages.decode(decoded, add=True)
    torch.testing.assert_close(decoded - 1 + errors, given, rtol=0, atol=1e-6)


def test_a_bad_name_says_what_there_is() -> None:
    with pytest.raises(ValueError, match="did you mean 'int4'") as error:
        load().Codec("int44")
    assert "topk:RATIO" in str(error.value)
