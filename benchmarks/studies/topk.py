"""Exact top-k of a large tensor on one core: selection and compaction, beside torch.topk."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.harness import timing
from benchmarks.harness.arguments import chosen
from benchmarks.studies.codecs import Messages

OPTIONS = {"elements": 25_000_000, "ratio": 0.01, "rounds": 5}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    values = torch.randn(args.elements, generator=torch.Generator().manual_seed(1))
    count = math.ceil(args.ratio * args.elements)
    messages = Messages(f"topk:{args.ratio}", args.elements)
    copy = torch.zeros_like(values)
    calls: dict[str, Callable[[], object]] = {
        "q7x2, select and compact": lambda: messages.encode(values),
        "torch.topk": lambda: torch.topk(values, count, sorted=False),
        "torch.topk of magnitudes": lambda: torch.topk(values.abs(), count, sorted=False),
        "memcpy": lambda: copy.copy_(values),
    }
    medians = timing.median_seconds(calls, args.rounds)
    decoded = torch.empty_like(values)
    messages.decode(decoded)
    largest = torch.topk(values.abs(), count, sorted=False).values
    sent = decoded.abs().sort(descending=True).values[:count]
    if not torch.equal(sent, largest.sort(descending=True).values):
        raise ValueError("what was sent is not what torch.topk finds")
    figures = {"bytes": sum(messages.lengths), "median_seconds": medians}
    return {**chosen(args, "elements", "ratio"), **figures}


def lines(body: Mapping[str, Any]) -> list[str]:
    medians = body["median_seconds"]
    ours = medians["q7x2, select and compact"]
    return [
        f"{name:28} {median * 1e3:8.1f} ms {median / ours:8.2f} x"
        for name, median in medians.items()
    ]
