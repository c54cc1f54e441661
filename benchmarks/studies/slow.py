"""Outer steps per second with one slow rank: DiLoCo beside a quorum, with and without balance.

Ranks on this machine train a small network. One of them waits after each inner step, so that its
steps take some times as long. All methods train for the same time, from the same weights. The loss
is that of the shared weights on data that no rank has seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import ranks
from benchmarks.harness.arguments import chosen, option

METHODS: dict[str, dict[str, Any] | None] = {
    "DiLoCo": None,
    "quorum": {"grace": 0.02, "takeover": 0.2},
    "quorum, balanced": {"grace": 0.02, "takeover": 0.2, "balance": True},
}
STEP_SECONDS = 0.02  # of a fast rank's inner step, at least

OPTIONS = {
    "ranks": 4,
    "times": option(3.0, "how much slower rank 1 is"),
    "every": option(20, "inner steps per outer step"),
    "seconds": option(60.0, "of each method"),
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.ranks < 3 or args.times < 1:
        raise ValueError("--ranks must be at least 3, and --times at least 1")
    spec, timeout_s = chosen(args, *OPTIONS), len(METHODS) * args.seconds + 300
    return {**spec, "methods": ranks.run(__name__, spec, args.ranks, timeout_s=timeout_s)}


def lines(body: Mapping[str, Any]) -> list[str]:
    return [
        f"{method:17} {each['outer_steps'] / each['seconds']:.2f} outer steps per second, loss "
        f"{each['loss']:.4f} after {each['seconds']:.1f} s"
        for method, each in body["methods"].items()
    ]


def rank_main(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of each method."""
    dist.init_process_group("q7x2")
    return {method: train(spec, options) for method, options in METHODS.items()}


def train(spec: dict[str, Any], options: dict[str, Any] | None) -> dict[str, Any]:
    rank = dist.get_rank()
    pause = STEP_SECONDS * (spec["times"] if rank == 1 else 1.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    quorum = options is not None
    diloco = q7x2.cadence.DiLoCo(
        model,
        inner,
        sync_every=spec["every"],
        quorum=None if options is None else q7x2.cadence.QuorumOptions(**options),
    )

    def loss(generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(32, 64, generator=generator)
        return nn.functional.mse_loss(model(x), torch.tanh(x[:, :8] * x[:, 8:16]))

    # As many outer steps as fit if nobody is slow; DiLoCo takes fewer, because all wait.
    fast = spec["seconds"] / (spec["every"] * STEP_SECONDS)
    last = max(2, round(fast if quorum else fast / spec["times"]))
    own = torch.Generator().manual_seed(rank)
    begin = time.monotonic()
    while diloco.outer_steps < last:
        started = time.monotonic()
        loss(own).backward()
        inner_seconds = time.monotonic() - started
        time.sleep(max(0.0, pause - inner_seconds))
        diloco.step()
        diloco.zero_grad()
    seconds = time.monotonic() - begin
    diloco.finish()
    with torch.no_grad():
        unseen = torch.Generator().manual_seed(10_000)
        held_out = sum(loss(unseen).item() for _ in range(32)) / 32
    return {"outer_steps": last, "seconds": seconds, "loss": held_out}
