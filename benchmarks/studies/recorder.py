"""What the flight recorder costs: an all-reduce of 4 bytes with and without it, in turns.

Each turn makes a new group in the same processes, with the recorder on or off, in an order drawn by
chance. A pair of turns gives one difference of medians. One rank alone shows the cost best, because
nothing is waited for; two ranks show what a user sees.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

import q7x2
import torch
import torch.distributed as dist

from benchmarks.harness import facts, study
from benchmarks.harness.inference import median_interval

CALLS = 3000
WARM_UP = 300


def main(argv: list[str]) -> None:
    parser = study.parser(__name__, __doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=60, help="of turns, for each number of ranks")
    args = parser.parse_args(argv)
    machine = facts.collect()
    rows = [measure(ranks, args.pairs) for ranks in args.ranks]
    study.publish(args.out, {"rows": rows}, lines, machine)


def measure(ranks: int, pairs: int) -> dict[str, Any]:
    """The differences on rank 0, in seconds per call."""
    spec = {"ranks": ranks, "pairs": pairs, "seed": random.randrange(1 << 30)}
    env, seconds = {"Q7X2_REFINE": "0"}, 60 + 10 * pairs
    turns = study.run(__name__, spec, ranks, env=env, timeout_s=seconds)
    row: dict[str, Any] = {"ranks": ranks, "pairs": pairs}
    for name in ("seconds", "cpu_seconds"):
        off, on = turns[f"{name}_off"], turns[f"{name}_on"]
        difference, low, high = median_interval([b - a for a, b in zip(off, on, strict=True)])
        row[name] = {
            "off": statistics.median(off),
            "difference": difference,
            "low": low,
            "high": high,
        }
    return row


def rank_main(spec: dict[str, Any]) -> dict[str, list[float]] | None:
    """Returns the medians of the turns of rank 0."""
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
    return turns if rank == 0 else None


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


def lines(body: Mapping[str, Any]) -> list[str]:
    """For a person."""
    return [sentence(row) for row in body["rows"]]


def sentence(row: dict[str, Any]) -> str:
    """The row for a person."""
    time_of, cpu = row["seconds"], row["cpu_seconds"]
    ranks = f"{row['ranks']} rank{'s' if row['ranks'] > 1 else ''}"
    return (
        f"{ranks}: {time_of['off'] * 1e6:.2f} µs without it, and with it "
        f"{time_of['difference'] * 1e9:+.0f} ns ({time_of['low'] * 1e9:+.0f} to "
        f"{time_of['high'] * 1e9:+.0f}); CPU {cpu['off'] * 1e6:.2f} µs, "
        f"{cpu['difference'] * 1e9:+.0f} ns ({cpu['low'] * 1e9:+.0f} to {cpu['high'] * 1e9:+.0f})"
    )
