"""Exact top-k of a large tensor on one core: selection and compaction, beside torch.topk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from q7x2._core.extension import load

from benchmarks.harness import study

BLOCK = 1 << 16


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    values = torch.randn(args.elements, generator=torch.Generator().manual_seed(1))
    count = math.ceil(args.ratio * args.elements)
    codec = load().Codec(f"topk:{args.ratio}")
    blocks = -(-args.elements // BLOCK)
    messages = torch.zeros(blocks * codec.max_bytes(BLOCK), dtype=torch.uint8)
    copy = torch.zeros_like(values)

    lengths: list[int] = []

    def encode() -> None:
        lengths[:] = codec.encode(values, messages, block=BLOCK)

    calls: dict[str, Callable[[], object]] = {
        "q7x2, select and compact": encode,
        "torch.topk": lambda: torch.topk(values, count, sorted=False),
        "torch.topk of magnitudes": lambda: torch.topk(values.abs(), count, sorted=False),
        "memcpy": lambda: copy.copy_(values),
    }
    medians = study.median_seconds(calls, args.rounds)

    decoded = torch.empty_like(values)
    codec.decode(messages, lengths, decoded, block=BLOCK)
    largest = torch.topk(values.abs(), count, sorted=False).values
    sent = decoded.abs().sort(descending=True).values[:count]
    if not torch.equal(sent, largest.sort(descending=True).values):
        raise ValueError("what was sent is not what torch.topk finds")

    body = study.chosen(args, "elements", "ratio")
    study.publish(args.out, {**body, "bytes": sum(lengths), "median_seconds": medians}, lines)


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    medians = body["median_seconds"]
    ours = medians["q7x2, select and compact"]
    return [
        f"{name:28} {median * 1e3:8.1f} ms {median / ours:8.2f} x"
        for name, median in medians.items()
    ]
