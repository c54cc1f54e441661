"""Exact top-k of a large tensor on one core: selection and compaction, beside torch.topk."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from q7x2._core.extension import load

from benchmarks.harness import facts, report

RESULTS = Path(__file__).parents[1] / "results"
BLOCK = 1 << 16


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks topk", description=__doc__)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "topk.json")
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
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}

    decoded = torch.empty_like(values)
    codec.decode(messages, lengths, decoded, block=BLOCK)
    largest = torch.topk(values.abs(), count, sorted=False).values
    sent = decoded.abs().sort(descending=True).values[:count]
    if not torch.equal(sent, largest.sort(descending=True).values):
        raise ValueError("what was sent is not what torch.topk finds")

    machine = facts.collect()
    console = report.console()
    report.print_facts(console, machine)
    ours = medians["q7x2, select and compact"]
    for name, median in medians.items():
        console.print(f"{name:28} {median * 1e3:8.1f} ms {median / ours:8.2f} x", markup=False)
    report.write_json(
        args.out,
        machine,
        {
            "elements": args.elements,
            "ratio": args.ratio,
            "bytes": sum(lengths),
            "median_seconds": medians,
        },
    )
