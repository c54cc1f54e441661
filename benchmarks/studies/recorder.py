"""What the flight recorder costs: an all-reduce of 4 bytes with and without it, in turns.

Each turn makes a new group in the same processes, with the recorder on or off, in an order drawn by
chance. A pair of turns gives one difference of medians. One rank alone shows the cost best, because
nothing is waited for; two ranks show what a user sees.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import ranks
from benchmarks.harness.arguments import option
from benchmarks.harness.inference import median_interval

CALLS = 3000
WARM_UP = 300

OPTIONS = {"ranks": [1, 2], "pairs": option(60, "of turns, for each number of ranks")}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The differences on rank 0, in seconds per call."""
    for count in args.ranks:
        row: dict[str, Any] = {"ranks": count, "pairs": args.pairs}
        spec, timeout_s = {**row, "seed": random.randrange(1 << 30)}, 60 + 10 * args.pairs
        turns = ranks.run(__name__, spec, count, env=ranks.UNREFINED, timeout_s=timeout_s)
        for name in ("seconds", "cpu_seconds"):
            off, on = turns[f"{name}_off"], turns[f"{name}_on"]
            found = median_interval([b - a for a, b in zip(off, on, strict=True)])
            difference = dict(zip(("difference", "low", "high"), found, strict=True))
            row[name] = {"off": statistics.median(off), **difference}
        yield row


def row_lines(row: dict[str, Any]) -> Iterator[str]:
    seconds, cpu = row["seconds"], row["cpu_seconds"]

    def difference(of: dict[str, float]) -> str:
        low, high = 1e9 * of["low"], 1e9 * of["high"]
        return f"{1e9 * of['difference']:+.0f} ns ({low:+.0f} to {high:+.0f})"

    yield (
        f"{row['ranks']} rank{'s' if row['ranks'] > 1 else ''}: {seconds['off'] * 1e6:.2f} µs "
        f"without it, and with it {difference(seconds)}; CPU {cpu['off'] * 1e6:.2f} µs, "
        f"{difference(cpu)}"
    )


def rank_main(spec: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the medians of the turns."""
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0
    )
    order = random.Random(spec["seed"])  # the same on all ranks
    turns: dict[str, list[float]] = {
        f"{name}_{state}": [] for name in ("seconds", "cpu_seconds") for state in ("off", "on")
    }
    for pair in range(spec["pairs"]):
        for state in order.sample(("off", "on"), 2):
            key = dist.PrefixStore(f"{pair}{state}", store)
            seconds, cpu_seconds = _turn(key, rank, spec["ranks"], state)
            turns[f"seconds_{state}"].append(seconds)
            turns[f"cpu_seconds_{state}"].append(cpu_seconds)
    return turns


def _turn(store: Any, rank: int, ranks: int, state: str) -> tuple[float, float]:
    """The median time of a call, and its CPU time on average."""
    os.environ["Q7X2_FLIGHT_RECORDER"] = "2000" if state == "on" else "0"
    group = q7x2.ProcessGroup(store, rank, ranks)
    tensor = torch.ones(1, dtype=torch.int32)
    for _ in range(WARM_UP):
        group.allreduce([tensor]).wait()
    if bool(q7x2.flight_recorder()) != (state == "on"):
        raise RuntimeError(f"the flight recorder is not {state}")
    times = []
    cpu = time.process_time()
    for _ in range(CALLS):
        begin = time.perf_counter_ns()
        group.allreduce([tensor]).wait()
        times.append(time.perf_counter_ns() - begin)
    cpu = (time.process_time() - cpu) / CALLS
    group.shutdown()
    return statistics.median(times) * 1e-9, cpu
