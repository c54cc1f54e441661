"""Codecs without communication: tensors to messages and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from q7x2._core.extension import load


def encode(
    name: str, values: torch.Tensor, errors: torch.Tensor | None = None, **more: Any
) -> tuple[Any, torch.Tensor, list[int]]:
    codec = load().Codec(name)
    block = more.get("block", 65536)
    room = -(-values.numel() // block) * codec.max_bytes(block)
    messages = torch.empty(room, dtype=torch.uint8)
    return codec, messages, codec.encode(values, messages, errors, **more)


def test_topk_is_that_of_torch() -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    count = math.ceil(0.01 * values.numel())
    errors = torch.zeros_like(values)
    codec, messages, lengths = encode("topk:0.01", values, errors)
    out = torch.empty_like(values)
    codec.decode(messages, lengths, out)
    expected = torch.zeros_like(values)
    largest = values.abs().topk(count).indices
    expected[largest] = values[largest]
    assert torch.equal(out, expected)
    assert torch.equal(out + errors, values)
    assert codec.bits == pytest.approx(sum(lengths) * 8 / values.numel(), rel=0.05)


def test_what_was_kept_is_sent_later() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(2))
    errors = torch.zeros_like(values)
    total = torch.zeros_like(values)
    for step in range(50):
        codec, messages, lengths = encode("randomk:0.2+int8", values, errors, shared_key=step)
        codec.decode(messages, lengths, total, add=True, shared_key=step)
    assert torch.allclose(total + errors, 50 * values, rtol=1e-4, atol=1e-4)


def test_lossless_is_exact_and_shorter() -> None:
    values = torch.randn(100_001, generator=torch.Generator().manual_seed(3))
    codec, messages, lengths = encode("lossless", values, block=1000)
    out = torch.empty_like(values)
    codec.decode(messages, lengths, out, block=1000)
    assert torch.equal(out, values)
    assert sum(lengths) < 0.9 * 4 * values.numel()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'topk'"):
        load().Codec("topj:0.1")
    codec = load().Codec("int8")
    values = torch.zeros(100)
    messages = torch.empty(codec.max_bytes(65536), dtype=torch.uint8)
    with pytest.raises(ValueError, match="messages: expected"):
        codec.encode(values, messages[:10])
    with pytest.raises(ValueError, match="values: expected"):
        codec.encode(values.double(), messages)
    with pytest.raises(ValueError, match="values: expected"):
        codec.encode(torch.zeros(10, 10).t()[1:], messages)
    with pytest.raises(ValueError, match="errors: expected"):
        codec.encode(values, messages, torch.zeros(99))
    with pytest.raises(ValueError, match="block: expected"):
        codec.encode(values, messages, block=0)
    lengths = codec.encode(values, messages)
    with pytest.raises(ValueError, match="lengths: expected"):
        codec.decode(messages, [*lengths, 1], values)
    messages[4] ^= 1
    with pytest.raises(RuntimeError, match="made by another codec"):
        codec.decode(messages, lengths, values)
