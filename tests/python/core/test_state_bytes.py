"""A state of training as bytes: it comes back bit for bit, and other bytes are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from q7x2._core.json_values import MalformedMessageError
from q7x2._core.state_bytes import decode, encode
from seeds import seed
from values import assert_bits

DTYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
STATE = {
    "weights": {"a": torch.randn(3, 5), "b.c": torch.tensor(2.5), "none": torch.empty(0, 4)},
    "kinds": [torch.arange(7).to(dtype) for dtype in DTYPES],
    "groups": [{"betas": (0.9, 0.999), "lr": 1e-3, "fused": None, "maximize": False, "p": [0, 1]}],
    "state": {0: {"step": torch.tensor(3.0)}, 1: {}},
    "limit": float("inf"),
    "name": "größer",
}


def expect_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape
        assert_bits(found, expected, "a tensor")
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            expect_equal(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            expect_equal(one, other)
    else:
        assert found == expected


def test_a_state_comes_back_bit_for_bit() -> None:
    expect_equal(decode(encode(STATE)), STATE)
    expect_equal(decode(encode(torch.randn(4, 6).T)).shape, torch.Size([6, 4]))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_goes_on_from_it(make: Any) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    again = make(model.parameters(), lr=0.5)
    again.load_state_dict(decode(encode(state)))
    expect_equal(again.state_dict(), state)


@pytest.mark.parametrize("value", [object(), {2.5: 1}, torch.zeros(2).to(torch.float8_e5m2), {1}])
def test_what_a_state_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a state has"):
        encode({"x": value})


def test_other_bytes_are_refused_or_make_plain_values() -> None:
    good = encode(STATE)
    source = random.Random(seed())
    for _ in range(300):
        bad = good.clone()
        for _ in range(source.randrange(1, 4)):
            bad[source.randrange(min(1200, bad.numel()))] = source.randrange(256)
        if source.random() < 0.3:
            bad = bad[: source.randrange(bad.numel())]
        try:
            decode(bad)
        except MalformedMessageError:
            continue
    for text in (b"[]", b"{}", b'{"tensor": "float32", "shape": [-1]}', b'{"list": 5}', b"["):
        data = len(text).to_bytes(8, "little") + text
        with pytest.raises(MalformedMessageError):
            decode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    with pytest.raises(MalformedMessageError):
        decode(torch.cat([good, torch.zeros(1, dtype=torch.uint8)]))
    with pytest.raises(MalformedMessageError, match="in the middle of a tensor"):
        decode(good[:-1])
