"""What the ledger costs: calls and DDP steps with it on and off, in turns; and long reports.

`overhead`: two ranks make all-reduces of 4 B, 64 KiB and 16 MiB, and steps of a small DDP model.
The ledgers of both write or pause in turns of the same calls, in an order drawn by chance. A ledger
sleeps, but for one write when a second of the clock begins. So what is compared are windows around
these moments. A pair of windows gives one ratio of mean times, and as a share of the second one
overhead; published are the median and its bootstrap interval.

`report`: see ledger_report.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from q7x2.ledger import writer as ledger_writer
from q7x2.ledger.writer import PERIOD, to_next_write

from benchmarks.harness import facts, launch, report
from benchmarks.harness.bootstrap import median_interval
from benchmarks.harness.processes import run_ranks
from benchmarks.studies import ledger_report

RESULTS = Path(__file__).parents[1] / "results"
GOAL = 0.01
# Seconds: of a window around a write; between looks at the clock.
WINDOW = 0.1
CHUNK = 0.005
SIZES = {"4 B": 4, "64 KiB": 64 << 10, "16 MiB": 16 << 20}
PARTS = ("overhead", "report")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=100, help="of turns, for each kind")
    parser.add_argument("--steps", type=int, default=10_000, help="of the run that is reported")
    parser.add_argument("--ranks", type=int, default=8, help="of the run that is reported")
    parser.add_argument("--out", type=Path, default=RESULTS / "ledger.json")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        worker(**args.worker)
        return
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    machine = facts.collect()
    if "overhead" in args.parts:
        found["overhead"] = overhead(args.pairs)
        for row in found["overhead"]:
            print(sentence(row))
        print(f"goal: at most {100 * GOAL:g} %")
    if "report" in args.parts:
        found["report"] = ledger_report.measure(args.steps, args.ranks, buckets=4)
        print(ledger_report.sentence(found["report"]))
    report.write_json(args.out, machine, {part: found[part] for part in PARTS if part in found})


def overhead(pairs: int) -> list[dict[str, Any]]:
    """One row per kind of work: seconds without the ledger, and the overhead with its interval."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": launch.python_path(),
            "Q7X2_REFINE": "0",
            "Q7X2_LEDGER": folder,
        }
        spec = {"pairs": pairs, "seed": random.randrange(1 << 30)}
        command = [sys.executable, "-m", "benchmarks", "ledger", "--worker", json.dumps(spec)]
        ranks = launch.rank_environments(2, env)
        results = run_ranks([command] * 2, ranks, 120 + 40 * pairs)
    turns: dict[str, dict[str, list[float]]] = json.loads(results[0].lines[-1])
    return [row_of(kind, each["off"], each["on"]) for kind, each in turns.items()]


def row_of(kind: str, off: list[float], on: list[float]) -> dict[str, Any]:
    ratios = [(b / a - 1) * WINDOW / PERIOD for a, b in zip(off, on, strict=True)]
    share, low, high = median_interval(ratios)
    return {
        "kind": kind,
        "pairs": len(ratios),
        "seconds_off": statistics.median(off),
        "overhead": share,
        "low": low,
        "high": high,
    }


def worker(pairs: int, seed: int) -> None:
    """One rank: prints the mean times of its turns as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("q7x2")
    order = random.Random(seed)  # the same on all ranks
    turns = {}
    for kind, size in SIZES.items():
        tensor = torch.ones(size // 4)
        work = partial(dist.all_reduce, tensor)
        turns[f"all_reduce of {kind}"] = _turns(work, pairs, order)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    ddp = DistributedDataParallel(model)
    batch = torch.randn(32, 256)

    def step() -> None:
        ddp(batch).square().mean().backward()

    turns["DDP step"] = _turns(step, pairs, order)
    dist.destroy_process_group()
    print(json.dumps(turns))


class _Work:
    """Calls that all ranks make equally often: rank 0 says when it is enough."""

    def __init__(self, call: Callable[[], Any]) -> None:
        import torch
        import torch.distributed as dist

        self._call = call
        self._is_enough = torch.zeros(1)
        self._at_once = 10
        at_once = torch.tensor([max(int(CHUNK / self.run(for_seconds=0.5)), 1)])
        dist.broadcast(at_once, 0)
        self._at_once = int(at_once)

    def run(self, for_seconds: float) -> float:
        """The mean seconds of a call."""
        import torch.distributed as dist

        calls = 0
        begin = time.perf_counter()
        self._is_enough.zero_()
        while not self._is_enough:
            for _ in range(self._at_once):
                self._call()
            calls += self._at_once
            self._is_enough.fill_(time.perf_counter() - begin >= for_seconds)
            dist.broadcast(self._is_enough, 0)
        return (time.perf_counter() - begin) / calls


def _turns(call: Callable[[], Any], pairs: int, order: random.Random) -> dict[str, list[float]]:
    """The mean seconds of a call in each turn's window, without the ledger and with it."""
    work = _Work(call)
    ledger = ledger_writer.of_process(os.environ["Q7X2_LEDGER"])
    ledger.pause()
    turns: dict[str, list[float]] = {"off": [], "on": []}
    work.run(for_seconds=to_next_write(time.time()))
    for _ in range(pairs):
        for state in order.sample(("off", "on"), 2):
            # The write of this second is over. The next one writes what nearly a second left.
            if state == "on":
                ledger.resume()
            work.run(for_seconds=to_next_write(time.time()) - WINDOW / 4)
            turns[state].append(work.run(for_seconds=WINDOW))
            if state == "on":
                ledger.pause()
    ledger.resume()
    return turns


def sentence(row: dict[str, Any]) -> str:
    """The row for a person."""
    return (
        f"{row['kind']:20} {row['seconds_off'] * 1e6:10.1f} µs without the ledger, with it "
        f"{100 * row['overhead']:+.2f} % ({100 * row['low']:+.2f} to {100 * row['high']:+.2f})"
    )
